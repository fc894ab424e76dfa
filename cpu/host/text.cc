#include "cpu/host/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <type_traits>

#include "cpu/host/host_parallel.h"

namespace jaxgnn::host {
namespace {

constexpr std::size_t kLongestLine = 1 << 16;
constexpr std::size_t kLongestNumber = 400;
constexpr std::size_t kQuoted = 40;
constexpr int64_t kMaxNodes = std::numeric_limits<int32_t>::max();

bool is_blank(char c) { return c == ' ' || c == '\t'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The start of a text, with what is not printable ASCII as \x1b.
std::string quote(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text.substr(0, kQuoted)) {
    const unsigned byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      quoted += c;
      continue;
    }
    constexpr char digits[] = "0123456789abcdef";
    quoted += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
  }
  return quoted + (text.size() > kQuoted ? "...'" : "'");
}

// The next token, up to a blank or a separator; empty at the end of the line.
std::string_view next_token(std::string_view& line, char separator = ' ') {
  std::size_t begin = 0;
  while (begin < line.size() && is_blank(line[begin])) ++begin;
  std::size_t end = begin;
  while (end < line.size() && !is_blank(line[end]) && line[end] != separator) ++end;
  const std::string_view token = line.substr(begin, end - begin);
  line.remove_prefix(end);
  return token;
}

// One separator between two columns, with blanks around it, or blanks alone.
void skip_separator(std::string_view& line, char separator) {
  std::size_t i = 0;
  while (i < line.size() && is_blank(line[i])) ++i;
  if (i < line.size() && line[i] == separator) ++i;
  line.remove_prefix(i);
}

// Digits and nothing else, at most `limit`; -1 of anything else.
int64_t parse_count(std::string_view token, int64_t limit) {
  if (token.empty()) return -1;
  int64_t value = 0;
  for (const char c : token) {
    if (!is_digit(c)) return -1;
    const int64_t digit = c - '0';
    // Of a limit below 9 the quotient of a negative number would be 0.
    if (digit > limit || value > (limit - digit) / 10) return -1;
    value = 10 * value + digit;
  }
  return value;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// What a token is as a number: not one, zero, or anything else.
enum class Number { kNone, kZero, kNonzero };

Number classify(std::string_view token, bool integer) {
  if (!token.empty() && (token[0] == '-' || token[0] == '+')) token.remove_prefix(1);
  if (!integer && token.size() <= 8) {
    const std::string word = lower(token);
    if (word == "nan" || word == "inf" || word == "infinity") return Number::kNonzero;
  }
  bool zero = true, digits = false, point = false;
  std::size_t i = 0;
  for (; i < token.size(); ++i) {
    if (is_digit(token[i])) {
      digits = true;
      zero &= token[i] == '0';
    } else if (token[i] == '.' && !point && !integer) {
      point = true;
    } else {
      break;
    }
  }
  if (!digits) return Number::kNone;
  if (i < token.size()) {
    if (integer || std::strchr("eEdD", token[i]) == nullptr) return Number::kNone;
    token.remove_prefix(i + 1);
    if (!token.empty() && (token[0] == '-' || token[0] == '+')) token.remove_prefix(1);
    if (token.empty() || !std::all_of(token.begin(), token.end(), is_digit)) return Number::kNone;
  }
  return zero ? Number::kZero : Number::kNonzero;
}

bool parse_number(std::string_view token, int64_t* value) {
  if (!token.empty() && token[0] == '+') token.remove_prefix(1);
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), *value);
  return error == std::errc() && end == token.data() + token.size();
}

bool parse_number(std::string_view token, float* value) {
  if (token.size() > kLongestNumber || classify(token, false) == Number::kNone) return false;
  char text[kLongestNumber + 1];
  std::memcpy(text, token.data(), token.size());
  text[token.size()] = '\0';
  for (std::size_t i = 0; i < token.size(); ++i) {
    if (text[i] == 'd' || text[i] == 'D') text[i] = 'e';  // Fortran's exponents
  }
  char* end = nullptr;
  *value = static_cast<float>(std::strtod(text, &end));  // in double, as NumPy and pandas do
  return end == text + token.size();
}

}  // namespace

template <class T>
void GrowingArray<T>::grow() {
  constexpr int64_t kFirst = 256;
  const int64_t capacity = std::max(kFirst, capacity_ + capacity_ / 2);
  allowance_->take(capacity * static_cast<int64_t>(sizeof(T)));  // for a while there are both
  void* data = std::realloc(data_, static_cast<std::size_t>(capacity) * sizeof(T));
  if (data == nullptr) throw std::bad_alloc();
  allowance_->give(capacity_ * static_cast<int64_t>(sizeof(T)));
  data_ = static_cast<T*>(data);
  capacity_ = capacity;
}

template <class T>
T* GrowingArray<T>::release() {
  const std::size_t bytes = std::max<std::size_t>(1, static_cast<std::size_t>(size_) * sizeof(T));
  void* data = std::realloc(data_, bytes);
  if (data == nullptr) throw std::bad_alloc();
  data_ = nullptr;
  size_ = capacity_ = 0;
  return static_cast<T*>(data);
}

template class GrowingArray<int32_t>;
template class GrowingArray<int64_t>;
template class GrowingArray<float>;
template class GrowingArray<char>;

NameTable::NameTable(Allowance& allowance)
    : text(allowance), ends(allowance), allowance_(&allowance) {
  std::random_device device;
  seed_ = uint64_t{device()} << 32 | device();
}

uint64_t NameTable::hash(std::string_view name) const {
  uint64_t state = seed_ ^ name.size();
  while (!name.empty()) {
    uint64_t word = 0;
    const std::size_t size = std::min<std::size_t>(8, name.size());
    std::memcpy(&word, name.data(), size);
    name.remove_prefix(size);
    // The finalizer of splitmix64, a round for each word.
    state += word + 0x9e3779b97f4a7c15;
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
    state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
    state ^= state >> 31;
  }
  return state;
}

std::string_view NameTable::name(int32_t number) const {
  const int64_t begin = number == 0 ? 0 : ends[number - 1];
  return {text.data() + begin, static_cast<std::size_t>(ends[number] - begin)};
}

int32_t NameTable::number(std::string_view wanted) {
  if (2 * static_cast<std::size_t>(ends.size() + 1) > slots_.size()) rehash();
  const std::size_t mask = slots_.size() - 1;
  std::size_t place = hash(wanted) & mask;
  for (; slots_[place] >= 0; place = (place + 1) & mask) {
    if (name(slots_[place]) == wanted) return slots_[place];
  }
  if (ends.size() == kMaxNodes) return -1;
  for (const char c : wanted) text.push(c);
  ends.push(text.size());
  return slots_[place] = static_cast<int32_t>(ends.size() - 1);
}

void NameTable::rehash() {
  const std::size_t size = std::max<std::size_t>(256, 2 * slots_.size());
  allowance_->take(static_cast<int64_t>(size * sizeof(int32_t)));
  std::vector<int32_t> slots(size, -1);
  for (int64_t i = 0; i < ends.size(); ++i) {
    std::size_t place = hash(name(static_cast<int32_t>(i))) & (size - 1);
    while (slots[place] >= 0) place = (place + 1) & (size - 1);
    slots[place] = static_cast<int32_t>(i);
  }
  allowance_->give(static_cast<int64_t>(slots_.size() * sizeof(int32_t)));
  slots_ = std::move(slots);
}

void LineParser::refuse(const std::string& expected, std::string_view got) const {
  throw FormatError("line " + std::to_string(line_) + ": expected " + expected + ", got " +
                    quote(got));
}

void LineParser::take_line(std::string_view line) {
  ++line_;
  if (line.size() > kLongestLine) {
    refuse("at most " + std::to_string(kLongestLine) + " bytes", line);
  }
  if (line_ <= skip_lines_) return;
  while (!line.empty() && (is_blank(line.back()) || line.back() == '\r')) line.remove_suffix(1);
  parse_line(line);
}

void LineParser::feed(const char* data, std::size_t size) {
  std::string_view block(data, size);
  while (!block.empty()) {
    if (rest_.empty() && line_ >= skip_lines_) {
      block.remove_prefix(parse_plain_lines(block));
      if (block.empty()) return;
    }
    const std::size_t end = block.find('\n');
    if (end == std::string_view::npos) {
      // What is beyond the longest line need not be kept to be refused.
      rest_.append(block.substr(0, kLongestLine + 1));
      if (rest_.size() > kLongestLine) take_line(rest_);
      return;
    }
    if (rest_.empty()) {
      take_line(block.substr(0, end));
    } else {
      rest_.append(block.substr(0, std::min(end, kLongestLine + 1)));
      take_line(rest_);
      rest_.clear();
    }
    block.remove_prefix(end + 1);
  }
}

void LineParser::finish() {
  if (rest_.empty()) return;
  take_line(rest_);
  rest_.clear();
}

// The next column of any but the default delimiter, without the blanks around it.
std::string_view EdgeListParser::next_column(std::string_view& line) const {
  if (format_.delimiter == ' ') return next_token(line);
  const std::size_t end = std::min(line.find(format_.delimiter), line.size());
  std::string_view column = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  while (!column.empty() && is_blank(column.front())) column.remove_prefix(1);
  while (!column.empty() && is_blank(column.back())) column.remove_suffix(1);
  return column;
}

int64_t EdgeListParser::parse_id(std::string_view token) {
  if (!format_.names) return parse_count(token, kMaxNodes - 1);
  return token.empty() ? -1 : names.number(token);
}

// Two ids of at most nine digits, split by one blank or comma (or the delimiter).
std::size_t EdgeListParser::parse_plain_lines(std::string_view block) {
  constexpr int kMostDigits = 9;
  const bool plain = !format_.names && !format_.weights && senders.size() > 0 &&
                     std::none_of(format_.comments.begin(), format_.comments.end(), is_digit);
  const std::size_t last = plain ? block.rfind('\n') : std::string_view::npos;
  if (last == std::string_view::npos) return 0;
  const char* const begin = block.data();
  const char* const end = begin + last;  // a newline, at which the loops stop
  const auto parse_digits = [](const char*& place, int32_t* value) {
    const char* const first = place;
    uint32_t sum = 0;
    while (is_digit(*place)) sum = 10 * sum + static_cast<uint32_t>(*place++ - '0');
    *value = static_cast<int32_t>(sum);
    return place != first && place - first <= kMostDigits;
  };
  const char* line = begin;
  int32_t largest = max_later_id;
  int64_t lines = 0;
  while (line <= end) {
    const char* place = line;
    int32_t sender, receiver;
    if (!parse_digits(place, &sender)) break;
    const bool separated = format_.delimiter == '\0'  ? is_blank(*place) || *place == ','
                           : format_.delimiter == ' ' ? is_blank(*place)
                                                      : *place == format_.delimiter;
    if (!separated || *place == '\n') break;
    ++place;
    if (!parse_digits(place, &receiver)) break;
    if (*place == '\r') ++place;
    if (*place != '\n') break;
    senders.push(sender);
    receivers.push(receiver);
    largest = std::max(largest, std::max(sender, receiver));
    line = place + 1;
    ++lines;
  }
  line_ += lines;
  max_later_id = largest;
  max_id = std::max(max_id, largest);
  return static_cast<std::size_t>(line - begin);
}

void EdgeListParser::parse_line(std::string_view line) {
  std::string_view left = line;
  if (!format_.strict) {
    if (line_ == 1 && left.substr(0, 3) == "\xef\xbb\xbf") left.remove_prefix(3);
    if (left.empty() || format_.comments.find(left.front()) != std::string::npos) return;
  }
  std::string_view tokens[3];
  const int columns = format_.weights ? 3 : 2;
  for (int i = 0; i < columns; ++i) {
    if (format_.delimiter != '\0') {
      tokens[i] = next_column(left);
      continue;
    }
    if (i > 0) skip_separator(left, ',');
    tokens[i] = next_token(left, ',');
  }
  for (const char c : format_.names ? line : left) {
    const unsigned byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t') || byte == 0x7f || (byte > 0x7f && !format_.names)) {
      refuse("text", line);
    }
  }
  const int64_t sender = parse_id(tokens[0]), receiver = parse_id(tokens[1]);
  if (sender < 0 || receiver < 0) {
    refuse(format_.names ? "two names" : "two ids from 0 to 2147483646", line);
  }
  if (format_.strict && !left.empty()) refuse("two columns", line);
  const int32_t larger = static_cast<int32_t>(std::max(sender, receiver));
  if (senders.size() == 0) {
    first_line = line_;
  } else {
    max_later_id = std::max(max_later_id, larger);
  }
  max_id = std::max(max_id, larger);
  senders.push(static_cast<int32_t>(sender));
  receivers.push(static_cast<int32_t>(receiver));
  if (!format_.weights) return;
  float weight = 0;
  if (!parse_number(tokens[2], &weight) || !std::isfinite(weight)) {
    refuse("a weight that float32 holds in the third column", line);
  }
  weights.push(weight);
}

void MatrixMarketParser::parse_line(std::string_view line) {
  if (!banner_) return parse_banner(line);
  if (line.empty() || (rows < 0 && line.front() == '%')) return;
  if (rows < 0) return parse_sizes(line);
  if (entries_ == expected_) {
    refuse("the end of the file after " + std::to_string(expected_) + " entries", line);
  }
  array_ ? parse_element(line) : parse_entry(line);
  ++entries_;
}

void MatrixMarketParser::parse_banner(std::string_view line) {
  std::string_view left = line;
  const std::string_view banner = next_token(left);
  const std::string object = lower(next_token(left)), format = lower(next_token(left));
  const std::string field = lower(next_token(left)), symmetry = lower(next_token(left));
  if (banner != "%%MatrixMarket" || object != "matrix" || !next_token(left).empty()) {
    refuse("'%%MatrixMarket matrix FORMAT FIELD SYMMETRY'", line);
  }
  if (format != "coordinate" && format != "array") refuse("coordinate or array", format);
  if (field == "complex" || symmetry == "hermitian") {
    refuse("real, integer or pattern, for edges have no complex weights", field);
  }
  array_ = format == "array";
  pattern_ = field == "pattern";
  integer_ = field == "integer" || field == "unsigned-integer";
  if (!pattern_ && !integer_ && field != "real" && field != "double") {
    refuse("the field real, integer or pattern", field);
  }
  if (symmetry == "symmetric") {
    symmetry_ = Symmetry::kSymmetric;
  } else if (symmetry == "skew-symmetric") {
    symmetry_ = Symmetry::kSkew;
  } else if (symmetry != "general") {
    refuse("the symmetry general, symmetric or skew-symmetric", symmetry);
  }
  if (pattern_ && (array_ || symmetry_ == Symmetry::kSkew)) {
    refuse("values, which a pattern does not have", line);
  }
  banner_ = true;
}

void MatrixMarketParser::parse_sizes(std::string_view line) {
  constexpr int64_t kMany = std::numeric_limits<int64_t>::max() / 16;
  std::string_view left = line;
  const int64_t r = parse_count(next_token(left), kMaxNodes);
  const int64_t c = parse_count(next_token(left), kMaxNodes);
  const int64_t entries =
      array_ ? r * std::max<int64_t>(c, 0) : parse_count(next_token(left), kMany);
  if (r < 0 || c < 0 || entries < 0 || !next_token(left).empty()) {
    refuse(array_ ? "two sizes below 2**31" : "two sizes below 2**31 and the number of entries",
           line);
  }
  if (symmetry_ != Symmetry::kGeneral && r != c) refuse("a square matrix", line);
  rows = r;
  columns = c;
  expected_ = entries;
  if (array_ && symmetry_ == Symmetry::kSymmetric) expected_ = r * (r + 1) / 2;
  if (array_ && symmetry_ == Symmetry::kSkew) {
    expected_ = r * (r - 1) / 2;
    row_ = 1;
  }
}

void MatrixMarketParser::add(int64_t row, int64_t column, float value) {
  senders.push(static_cast<int32_t>(row));
  receivers.push(static_cast<int32_t>(column));
  if (keep_values_) values.push(value);
  if (symmetry_ == Symmetry::kGeneral || row == column) return;
  senders.push(static_cast<int32_t>(column));
  receivers.push(static_cast<int32_t>(row));
  if (keep_values_) values.push(symmetry_ == Symmetry::kSkew ? -value : value);
}

float MatrixMarketParser::value_of(std::string_view token) const {
  float value = 1;
  if (!keep_values_ || pattern_) return value;
  if (!parse_number(token, &value) || !std::isfinite(value)) {
    refuse("a value that float32 holds", token);
  }
  return value;
}

void MatrixMarketParser::parse_entry(std::string_view line) {
  std::string_view left = line;
  const int64_t row = parse_count(next_token(left), rows);
  const int64_t column = parse_count(next_token(left), columns);
  if (row < 1 || column < 1) {
    refuse("a row from 1 to " + std::to_string(rows) + " and a column from 1 to " +
               std::to_string(columns),
           line);
  }
  const std::string_view token = pattern_ ? std::string_view() : next_token(left);
  if (!pattern_ && classify(token, integer_) == Number::kNone) {
    refuse(integer_ ? "an integer value" : "a value", line);
  }
  if (!next_token(left).empty()) refuse(pattern_ ? "two columns" : "three columns", line);
  if (symmetry_ == Symmetry::kSkew && row == column) {
    refuse("nothing on the diagonal of a skew-symmetric matrix", line);
  }
  add(row - 1, column - 1, value_of(token));
}

void MatrixMarketParser::parse_element(std::string_view line) {
  std::string_view left = line;
  const std::string_view token = next_token(left);
  const Number value = classify(token, integer_);
  if (value == Number::kNone || !next_token(left).empty()) refuse("one value", line);
  if (value == Number::kNonzero) add(row_, column_, value_of(token));
  if (++row_ == rows) {
    ++column_;
    row_ = symmetry_ == Symmetry::kGeneral ? 0 : column_ + (symmetry_ == Symmetry::kSkew);
  }
}

void MatrixMarketParser::finish() {
  LineParser::finish();
  if (rows < 0) throw FormatError("expected a Matrix Market file, got its end before the sizes");
  if (entries_ != expected_) {
    throw FormatError("expected " + std::to_string(expected_) + " entries, got " +
                      std::to_string(entries_));
  }
}

template <class T>
void TableParser<T>::parse_line(std::string_view line) {
  if (line.empty()) return;
  if (rows == max_rows_) {
    throw FormatError("expected at most " + std::to_string(max_rows_) + " rows, got more");
  }
  std::string_view left = line;
  int64_t count = 0;
  while (true) {
    const std::string_view token = next_token(left, ',');
    T value;
    if (!parse_number(token, &value)) {
      refuse(std::is_integral_v<T> ? "64-bit integers" : "numbers", line);
    }
    values.push(value);
    ++count;
    while (!left.empty() && is_blank(left.front())) left.remove_prefix(1);
    if (left.empty()) break;
    if (left.front() != ',') refuse("commas between the numbers", line);
    left.remove_prefix(1);
  }
  if (rows == 0) columns = count;
  if (count != columns) refuse(std::to_string(columns) + " columns", line);
  ++rows;
}

template class TableParser<int64_t>;
template class TableParser<float>;

// The rows' offsets, and their senders as they come. `Index` counts edges: what is counted is read
// and written in any order, so that half the bytes stay in the caches better.
template <class Index>
void place_senders(const int32_t* senders, const int32_t* receivers, int64_t num_edges,
                   int64_t num_nodes, bool undirected, Buffer<int64_t>& offsets,
                   Buffer<int32_t>& placed) {
  Buffer<Index> next(num_nodes + 1);
  std::fill_n(next.data(), num_nodes + 1, 0);
  // What is counted and placed far ahead is fetched meanwhile.
  constexpr int64_t kAhead = 32;
  const auto each = [&](const auto& f, const auto& fetch) {
    for (int64_t e = 0; e < num_edges; ++e) {
      if (e + kAhead < num_edges) fetch(receivers[e + kAhead]);
      f(senders[e], receivers[e]);
      if (undirected && senders[e] != receivers[e]) f(receivers[e], senders[e]);
    }
  };
  each([&](int32_t, int32_t receiver) { ++next[int64_t{receiver} + 1]; },
       [&](int32_t receiver) { __builtin_prefetch(&next[receiver], 1); });
  offsets[0] = 0;
  for (int64_t row = 0; row < num_nodes; ++row) {
    offsets[row + 1] = next[row + 1] += next[row];
  }
  placed = Buffer<int32_t>(offsets[num_nodes]);
  each([&](int32_t sender, int32_t receiver) { placed[next[receiver]++] = sender; },
       [&](int32_t receiver) { __builtin_prefetch(&placed[next[receiver]], 1); });
}

// As std::sort; most rows are short.
void sort_ids(int32_t* first, int32_t* last) {
  if (last - first > 24) return std::sort(first, last);
  for (int32_t* place = first + 1; place < last; ++place) {
    const int32_t id = *place;
    int32_t* hole = place;
    for (; hole > first && hole[-1] > id; --hole) *hole = hole[-1];
    *hole = id;
  }
}

Pattern build_pattern(const int32_t* senders, const int32_t* receivers, int64_t num_edges,
                      int64_t num_nodes, bool undirected) {
  Buffer<int64_t> offsets(num_nodes + 1);
  Buffer<int32_t> sorted;
  const bool few = num_edges <= std::numeric_limits<int32_t>::max() / 2;
  (few ? place_senders<int32_t> : place_senders<int64_t>)(senders, receivers, num_edges, num_nodes,
                                                          undirected, offsets, sorted);
  const int64_t total = offsets[num_nodes];
  parallel_for(num_nodes, num_chunks(total), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      sort_ids(sorted.data() + offsets[row], sorted.data() + offsets[row + 1]);
    }
  });
  int64_t kept = 0, begin = 0;
  for (int64_t row = 0; row < num_nodes; ++row) {
    const int64_t end = offsets[row + 1], first = kept;
    for (int64_t e = begin; e < end; ++e) {
      if (kept == first || sorted[kept - 1] != sorted[e]) sorted[kept++] = sorted[e];
    }
    begin = end;
    offsets[row + 1] = kept;
  }
  Pattern pattern;
  pattern.row_offsets = std::move(offsets);
  if (kept >= total - total / 8) {  // a copy would cost more than the memory that is left over
    sorted.truncate(kept);
    pattern.senders = std::move(sorted);
  } else {
    pattern.senders = Buffer<int32_t>(kept);
    std::copy_n(sorted.data(), kept, pattern.senders.data());
  }
  return pattern;
}

}  // namespace jaxgnn::host
