// Parsers of text that holds numbers: edge lists, Matrix Market files, comma-separated tables.
//
// A parser takes a file block by block, of any sizes, so that a compressed file need never lie in
// memory. It allocates for the lines it has seen, not for what a header claims, and no more than it
// was allowed. What is not the format is refused with the number of the line; nothing is guessed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu/host/graph.h"

namespace jaxgnn::host {

// A line that is not the format.
struct FormatError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// The bytes that several growing arrays may take together; beyond them std::bad_alloc.
class Allowance {
 public:
  void set(int64_t bytes) { allowed_ = bytes; }
  void take(int64_t bytes) {
    if (bytes > allowed_ - taken_) throw std::bad_alloc();
    taken_ += bytes;
  }
  void give(int64_t bytes) { taken_ -= bytes; }

 private:
  int64_t allowed_ = 0, taken_ = 0;
};

// An array that grows by half, into a block beside the one that it has.
template <class T>
class GrowingArray {
 public:
  explicit GrowingArray(Allowance& allowance) : allowance_(&allowance) {}
  GrowingArray(const GrowingArray&) = delete;
  GrowingArray& operator=(const GrowingArray&) = delete;
  ~GrowingArray() { std::free(data_); }

  void push(T value) {
    if (size_ == capacity_) grow();
    data_[size_++] = value;
  }
  int64_t size() const { return size_; }
  T operator[](int64_t i) const { return data_[i]; }
  const T* data() const { return data_; }

  // The array, without the part that was not used. The caller frees it.
  T* release();

 private:
  void grow();

  Allowance* allowance_;
  T* data_ = nullptr;
  int64_t size_ = 0, capacity_ = 0;
};

// Splits blocks into lines.
class LineParser {
 public:
  explicit LineParser(int64_t skip_lines = 0) : skip_lines_(skip_lines) {}
  virtual ~LineParser() = default;

  // The bytes that the arrays may take, all together; none at first.
  void allow(int64_t bytes) { allowance_.set(bytes); }
  void feed(const char* data, std::size_t size);
  virtual void finish();

 protected:
  // One line, without its end. Trailing blanks and the \r of other systems are cut off.
  virtual void parse_line(std::string_view line) = 0;

  // Parses whole lines of the commonest form from the start of a block, and counts them in `line_`;
  // returns the bytes that it took, up to the first line that is of any other form.
  virtual std::size_t parse_plain_lines(std::string_view) { return 0; }

  // Refuses the current line: "line 7: expected two ids, got 'a b'".
  [[noreturn]] void refuse(const std::string& expected, std::string_view got) const;

  Allowance allowance_;
  int64_t line_ = 0;  // the current line, from 1

 private:
  void take_line(std::string_view line);

  int64_t skip_lines_;
  std::string rest_;  // the start of a line whose end is in the next block
};

// Numbers names from 0 in the order in which they come.
class NameTable {
 public:
  explicit NameTable(Allowance& allowance);

  // The number of a name, which is added if it is new; -1 if there are 2**31 - 1 others.
  int32_t number(std::string_view name);

  GrowingArray<char> text;     // all names, one after the other
  GrowingArray<int64_t> ends;  // where each ends

 private:
  void rehash();
  uint64_t hash(std::string_view name) const;
  std::string_view name(int32_t number) const;

  Allowance* allowance_;
  uint64_t seed_;               // drawn anew: a file cannot choose names that collide
  std::vector<int32_t> slots_;  // -1, or the number of a name; a power of two of them
};

// How the columns of an edge list are split and read.
struct EdgeListFormat {
  bool strict = false;          // two columns, no comments, no empty lines
  char delimiter = '\0';        // 0: blanks or a comma; ' ': blanks; others: that alone
  std::string comments = "#%";  // a line that starts with one of these is no edge
  bool names = false;           // ids are any text, numbered as they come
  bool weights = false;         // the third column is a number
};

// An edge a line: two ids from 0, by default split by blanks or a comma. Columns beyond those that
// are asked for are not read.
class EdgeListParser : public LineParser {
 public:
  EdgeListParser(int64_t skip_lines, EdgeListFormat format)
      : LineParser(skip_lines), format_(std::move(format)) {}

  GrowingArray<int32_t> senders{allowance_}, receivers{allowance_};
  GrowingArray<float> weights{allowance_};
  NameTable names{allowance_};
  int32_t max_id = -1;        // of all edges
  int32_t max_later_id = -1;  // of all but the first
  int64_t first_line = 0;     // the line of the first edge

 private:
  void parse_line(std::string_view line) override;
  std::size_t parse_plain_lines(std::string_view block) override;
  std::string_view next_column(std::string_view& line) const;
  int64_t parse_id(std::string_view token);

  EdgeListFormat format_;
};

// The pattern of a matrix of the coordinate or the array format. Its row is the edge's sender.
class MatrixMarketParser : public LineParser {
 public:
  // `keep_values`: also the entries, 1 of a pattern.
  explicit MatrixMarketParser(bool keep_values) : keep_values_(keep_values) {}

  void finish() override;

  GrowingArray<int32_t> senders{allowance_}, receivers{allowance_};
  GrowingArray<float> values{allowance_};
  int64_t rows = -1, columns = -1;

 private:
  enum class Symmetry { kGeneral, kSymmetric, kSkew };

  void parse_line(std::string_view line) override;
  void parse_banner(std::string_view line);
  void parse_sizes(std::string_view line);
  void parse_entry(std::string_view line);
  void parse_element(std::string_view line);
  void add(int64_t row, int64_t column, float value);
  float value_of(std::string_view token) const;

  bool keep_values_;
  bool banner_ = false, array_ = false, pattern_ = false, integer_ = false;
  Symmetry symmetry_ = Symmetry::kGeneral;
  int64_t expected_ = 0, entries_ = 0;
  int64_t row_ = 0, column_ = 0;  // of the next element of an array
};

// A table of numbers split by commas, as many on each line.
template <class T>
class TableParser : public LineParser {
 public:
  explicit TableParser(int64_t max_rows) : max_rows_(max_rows) {}

  GrowingArray<T> values{allowance_};
  int64_t rows = 0, columns = 0;

 private:
  void parse_line(std::string_view line) override;

  int64_t max_rows_;
};

// The pattern of edges: rows by receiver, senders ascending, each once.
struct Pattern {
  Buffer<int64_t> row_offsets;
  Buffer<int32_t> senders;
};

// The caller has checked that the ids are in [0, num_nodes).
Pattern build_pattern(const int32_t* senders, const int32_t* receivers, int64_t num_edges,
                      int64_t num_nodes, bool undirected);

}  // namespace jaxgnn::host
