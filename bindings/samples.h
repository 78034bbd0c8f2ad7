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
/// converted here. All of it needs the GIL.
class Samples {
 public:
  /// Of tuples (content, label, index, upright).
  explicit Samples(const pybind11::list& rows);

  /// `content, label = table[place]` for each place, and place as the index.
  /// @param kinds  what a content may be an instance of, one of the types that isinstance() takes.
  static Samples of_pairs(const pybind11::object& table, const pybind11::list& places,
                          const pybind11::object& kinds, bool upright);

  std::size_t size() const noexcept { return rows_.size(); }
  /// @throws std::out_of_range
  pybind11::tuple row(std::size_t index) const;

  /// Whether contents and labels are the same or equal. A label's type counts: 1 == True.
  bool same_as(const Samples& other) const;

  /// Whether of_pairs() would certainly find the same: the table holds the very same pairs, and
  /// they cannot change.
  bool still_in(const pybind11::object& table, const pybind11::list& places) const;

  /// @param directory  where relative paths begin; none: they are left as they are.
  /// @throws pybind11::error_already_set: TypeError, ValueError or OverflowError for a label or a
  /// content of another type or range. default_collate would treat a bool or a numpy integer as a
  /// label otherwise than an int, so that only an int is one.
  std::vector<Sample> converted(const std::optional<std::string>& directory,
                                BufferKeeper& keeper) const;

 private:
  struct Row {
    pybind11::object pair;  // in the table; null unless it cannot change
    pybind11::object content;
    pybind11::object label;
    std::int64_t index = 0;
    bool upright = false;
  };

  Samples() = default;

  std::vector<Row> rows_;
};

}  // namespace headrace
