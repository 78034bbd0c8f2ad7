// The samples of a batch as Python has them, and as the engine wants them.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "buffers.h"
#include "headrace/source.h"

namespace headrace {

/// References to each sample's content and label. That dataset[index] makes new objects of them
/// costs far more than anything that is done with them, so they are looked up, compared and
/// converted here. Needs the GIL, but for convert_plain().
class Samples {
 public:
  /// Of tuples (content, label, index, upright).
  explicit Samples(const pybind11::list& rows);

  /// Of pairs (content, label): table[place] for each place, which is the index.
  /// @param kinds  what a content may be an instance of, one of the types that isinstance() takes.
  /// It is looked at when the content is.
  Samples(const pybind11::object& table, const pybind11::list& places, pybind11::object kinds);

  std::size_t size() const noexcept { return pairs_.size() + rows_.size(); }
  /// @throws std::out_of_range; pybind11::type_error: its content is of another kind.
  pybind11::tuple row(std::size_t index) const;

  /// Whether contents and labels are equal and of the same types: 1 == True.
  bool same_as(const Samples& other) const;

  /// Whether the table certainly holds the same at these places: the very same pairs, of which
  /// convert_plain() has found that they cannot change.
  bool still_in(const pybind11::object& table, const pybind11::list& places) const;

  /// The samples, if all are pairs of a plain ASCII path and an int. That is the usual case, and
  /// the GIL is not needed.
  /// @param directory  where relative paths begin; none: they are left as they are.
  std::optional<std::vector<Sample>> convert_plain(const std::optional<std::string>& directory);

  /// The samples, whatever they are.
  /// @throws pybind11::error_already_set: TypeError, ValueError or OverflowError for a label or a
  /// content of another type or range. default_collate would treat a bool or a numpy integer as a
  /// label otherwise than an int, so that only an int is one.
  std::vector<Sample> convert(const std::optional<std::string>& directory,
                              BufferKeeper& keeper) const;

 private:
  struct Row {
    pybind11::object content;
    pybind11::object label;
    std::int64_t index = 0;
    bool upright = false;
  };

  Row at(std::size_t index) const;
  /// The same, if the content is of one of the kinds.
  Row known(std::size_t index) const;

  // Either these, tuples of two that nobody has looked into yet,
  std::vector<pybind11::object> pairs_;
  std::vector<std::int64_t> indices_;
  pybind11::object kinds_;
  bool plain_ = false;
  // or these.
  std::vector<Row> rows_;
};

}  // namespace headrace
