// The edges with the smallest words: LABOR, and draws by weight without replacement.
#include "cuda/core/arithmetic.cuh"
#include "cuda/core/dispatch.cuh"
#include "cuda/sampling/places.cuh"
#include "cuda/sampling/sampling.h"

namespace jaxgnn::sampling {
namespace {

// The k edges of a row whose words are the smallest, of equal ones the first: a radix select from
// the highest digit of eight bits to the lowest finds the k-th smallest word, and one more pass
// takes the edges below it and the first ones that equal it, in the order of the row. The words are
// kept in shared memory, or where the row is longer than that drawn anew in each pass. A team is a
// warp or, for long rows, a block.
constexpr int kWordThreads = 256, kWordWarps = kWordThreads / 32;
constexpr uint32_t kWarpWords = 512;  // that a warp keeps: longer rows are a block's
constexpr int kDigits = 256, kDigitsPerLane = kDigits / 32;

struct SmallestShared {
  uint32_t words[kWordWarps][kWarpWords];
  uint32_t histograms[kWordWarps][kDigits];
  uint32_t counts[2][kWordWarps];  // of a chunk of edges, by warp: those that equal, those taken
  Place places[kWordWarps];
  uint32_t ids[kWordWarps];
};

template <int kTeam>
class Smallest {
 public:
  // `warp`: the first of the team's.
  __device__ Smallest(const SampleArgs& args, SmallestShared& shared, int warp, const Place& place,
                      uint32_t id)
      : args_(args),
        shared_(shared),
        words_(shared.words[warp]),
        histogram_(shared.histograms[warp]),
        place_(place),
        id_(id),
        labor_(args.sample.strategy == Strategy::kLabor),
        kept_(place.degree <= kTeam / 32 * kWarpWords) {}

  __device__ void run() {
    const uint32_t d = place_.degree, k = place_.taken;
    const uint32_t room = static_cast<uint32_t>(place_.last - place_.first);
    uint32_t limit = 0;   // the digits of the k-th smallest word that are known
    uint32_t equals = k;  // how many words that begin with these digits are taken
    if (k > 0 && k < d) {
      for (int shift = 24; shift >= 0; shift -= 8) next_digit(shift, limit, equals);
    }
    uint32_t written = 0;
    for (uint32_t base = 0; base < d && k > 0; base += kTeam) {
      const uint32_t j = base + member();
      const bool chosen = j < d && k < d;
      const uint32_t word = chosen ? word_at(j) : 0;
      const bool equal = chosen && word == limit && (labor_ || word != kNever);
      uint32_t all_equal, all_taken;
      const bool first = rank(equal, 0, all_equal) < equals && equal;
      const bool take = j < d && (k == d || word < limit || first);
      const uint32_t at = written + rank(take, 1, all_taken);
      if (take && at < room) {
        write_entry(args_, place_.first + int64_t(at), read_entry(args_, place_.begin + j, true));
      }
      written += all_taken;
      equals -= min(equals, all_equal);
    }
    for (uint32_t at = written + member(); at < room; at += kTeam) {
      write_entry(args_, place_.first + int64_t(at), {args_.rows.num_edges, 0});
    }
    sync();  // the shared memory may serve another row
  }

 private:
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static uint32_t member() { return threadIdx.x % kTeam; }
  __device__ static void sync() {
    if constexpr (kTeam == 32) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  __device__ uint32_t draw(uint32_t j) const {
    const uint32_t sender =
        labor_ ? static_cast<uint32_t>(load_column(args_.rows, place_.begin + j)) : 0;
    return order_word(args_, id_, j, place_.begin, sender);
  }
  __device__ uint32_t word_at(uint32_t j) const { return kept_ ? words_[j] : draw(j); }

  __device__ void next_digit(int shift, uint32_t& limit, uint32_t& equals) {
    const uint32_t d = place_.degree;
    for (uint32_t digit = member(); digit < kDigits; digit += kTeam) histogram_[digit] = 0;
    sync();
    for (uint32_t j = member(); j < d; j += kTeam) {
      const uint32_t word = shift == 24 ? draw(j) : word_at(j);
      if (shift == 24 && kept_) words_[j] = word;
      const bool fits = shift == 24 || word >> (shift + 8) == limit >> (shift + 8);
      if (fits) atomicAdd(histogram_ + (word >> shift & (kDigits - 1)), 1);
    }
    sync();
    // Every warp of the team finds the same.
    uint32_t counts[kDigitsPerLane], sum = 0;
    for (int i = 0; i < kDigitsPerLane; ++i) {
      counts[i] = histogram_[lane() * kDigitsPerLane + i];
      sum += counts[i];
    }
    uint32_t up_to = sum;
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(kFullWarp, up_to, step);
      if (lane() >= step) up_to += other;
    }
    // The first lane in whose digits the count is reached; the others' results are not used.
    const int owner = __ffs(__ballot_sync(kFullWarp, up_to >= equals)) - 1;
    uint32_t left = equals - (up_to - sum);
    int digit = 0;
    while (digit + 1 < kDigitsPerLane && counts[digit] < left) left -= counts[digit++];
    const uint32_t found = lane() * kDigitsPerLane + digit;
    limit |= __shfl_sync(kFullWarp, found, owner) << shift;
    equals = __shfl_sync(kFullWarp, left, owner);
    sync();
  }

  // How many members before this one say yes, and how many in all.
  __device__ uint32_t rank(bool yes, int which, uint32_t& all) {
    const unsigned ballot = __ballot_sync(kFullWarp, yes);
    uint32_t before = __popc(ballot & ((1u << lane()) - 1));
    all = __popc(ballot);
    if constexpr (kTeam > 32) {
      // The two arrays take turns: one is free again after the other's barrier.
      uint32_t* counts = shared_.counts[which];
      const int warp = threadIdx.x / 32;
      if (lane() == 0) counts[warp] = all;
      __syncthreads();
      all = 0;
      for (int i = 0; i < kWordWarps; ++i) {
        if (i < warp) before += counts[i];
        all += counts[i];
      }
    }
    return before;
  }

  const SampleArgs& args_;
  SmallestShared& shared_;
  uint32_t* words_;
  uint32_t* histogram_;
  const Place place_;
  const uint32_t id_;
  const bool labor_;
  const bool kept_;
};

__global__ void __launch_bounds__(kWordThreads) smallest_edges(const SampleArgs args) {
  __shared__ SmallestShared shared;
  fill_tail(args);
  const int warp = threadIdx.x / 32;
  const int64_t own = int64_t(blockIdx.x) * kWordWarps + warp;
  const Place place = find_place(args, own);
  const uint32_t id = own < args.num_places ? id_of(args, own) : 0;
  if (threadIdx.x % 32 == 0) {
    shared.places[warp] = place;
    shared.ids[warp] = id;
  }
  const auto is_short = [](const Place& of) { return of.degree <= kWarpWords; };
  if (is_short(place)) Smallest<32>(args, shared, warp, place, id).run();
  __syncthreads();
  for (int i = 0; i < kWordWarps; ++i) {
    if (is_short(shared.places[i])) continue;
    Smallest<kWordThreads>(args, shared, 0, shared.places[i], shared.ids[i]).run();
  }
}

}  // namespace

cudaError_t launch_smallest_edges(const SampleArgs& args, const Launch& launch) {
  return launch_kernel(launch, smallest_edges, blocks_of(args.num_places, kWordWarps), kWordThreads,
                       0, args);
}

}  // namespace jaxgnn::sampling
