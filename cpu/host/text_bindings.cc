// Python bindings of text.h. They release the GIL while they parse.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "cpu/bindings.h"
#include "cpu/host/numpy.h"
#include "cpu/host/text.h"

namespace jaxgnn::host {
namespace {

template <class T>
nb::object to_numpy(GrowingArray<T>& array) {
  const std::size_t size = static_cast<std::size_t>(array.size());
  return host::to_numpy(array.release(), size);
}

template <class Parser>
nb::class_<Parser> bind_parser(nb::module_& m, const char* name) {
  return nb::class_<Parser>(m, name)
      .def(
          "feed",
          [](Parser& parser, const nb::bytes& block) {
            const char* data = block.c_str();
            const std::size_t size = block.size();
            nb::gil_scoped_release release;
            parser.feed(data, size);
          },
          nb::arg("block"), "Parses a block; ValueError names the line that is not the format.")
      .def("allow", &Parser::allow, nb::arg("num_bytes"),
           "The bytes that it may allocate for what it has read; MemoryError beyond.")
      .def("finish", [](Parser& parser) { parser.finish(); }, "Ends the file.");
}

template <class Parser>
nb::tuple edges_of(Parser& parser) {
  return nb::make_tuple(to_numpy(parser.senders), to_numpy(parser.receivers));
}

template <class T>
void bind_table(nb::module_& m, const char* name) {
  using Parser = TableParser<T>;
  bind_parser<Parser>(m, name)
      .def(nb::init<int64_t>(), nb::arg("max_rows"))
      .def_ro("rows", &Parser::rows)
      .def_ro("columns", &Parser::columns)
      .def("take", [](Parser& parser) { return to_numpy(parser.values); }, "All values, by rows.");
}

nb::tuple pattern(const In<int32_t>& senders, const In<int32_t>& receivers, int64_t num_nodes,
                  bool undirected) {
  const int64_t num_edges = static_cast<int64_t>(senders.shape(0));
  if (receivers.shape(0) != senders.shape(0) || num_nodes < 0) {
    throw std::invalid_argument("build_pattern: inconsistent arguments");
  }
  Pattern result;
  {
    nb::gil_scoped_release release;
    const auto low = std::min(extent(senders.data(), num_edges).first,
                              extent(receivers.data(), num_edges).first);
    const auto high = std::max(extent(senders.data(), num_edges).second,
                               extent(receivers.data(), num_edges).second);
    if (low < 0 || high >= num_nodes) throw std::invalid_argument("build_pattern: id out of range");
    result = build_pattern(senders.data(), receivers.data(), num_edges, num_nodes, undirected);
  }
  return nb::make_tuple(to_numpy(std::move(result.row_offsets)),
                        to_numpy(std::move(result.senders)));
}

}  // namespace

void bind_text(nb::module_& m) {
  bind_parser<EdgeListParser>(m, "EdgeListParser")
      .def(
          "__init__",
          [](EdgeListParser* parser, int64_t skip_lines, bool strict, char delimiter,
             std::string comments, bool names, bool weights) {
            new (parser) EdgeListParser(skip_lines,
                                        {strict, delimiter, std::move(comments), names, weights});
          },
          nb::arg("skip_lines") = 0, nb::kw_only(), nb::arg("strict") = false,
          nb::arg("delimiter") = '\0', nb::arg("comments") = "#%", nb::arg("names") = false,
          nb::arg("weights") = false)
      .def_ro("max_id", &EdgeListParser::max_id)
      .def_ro("max_later_id", &EdgeListParser::max_later_id)
      .def_ro("first_line", &EdgeListParser::first_line)
      .def("take", &edges_of<EdgeListParser>, "Senders and receivers.")
      .def("take_weights", [](EdgeListParser& parser) { return to_numpy(parser.weights); })
      .def(
          "take_names",
          [](EdgeListParser& parser) {
            return nb::make_tuple(to_numpy(parser.names.text), to_numpy(parser.names.ends));
          },
          "The bytes of all names, and where each ends.");
  bind_parser<MatrixMarketParser>(m, "MatrixMarketParser")
      .def(nb::init<bool>(), nb::arg("keep_values") = false)
      .def_ro("rows", &MatrixMarketParser::rows)
      .def_ro("columns", &MatrixMarketParser::columns)
      .def("take", &edges_of<MatrixMarketParser>, "Rows (senders) and columns (receivers).")
      .def("take_values", [](MatrixMarketParser& parser) { return to_numpy(parser.values); });
  bind_table<int64_t>(m, "IntegerTableParser");
  bind_table<float>(m, "FloatTableParser");
  m.def("build_pattern", &pattern, nb::arg("senders").noconvert(), nb::arg("receivers").noconvert(),
        nb::arg("num_nodes"), nb::arg("undirected"),
        "Row offsets and senders of the distinct edges, sorted by (receiver, sender).");
}

}  // namespace jaxgnn::host
