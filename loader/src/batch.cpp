#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "headrace/engine.h"
#include "headrace/error.h"

namespace headrace {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message, {.stage = "engine"});
}

}  // namespace

const Field& Batch::field(std::string_view name) const {
  const auto found =
      std::ranges::find_if(fields, [&](const Field& one) { return one.spec.name == name; });
  if (found == fields.end()) refuse("the batch has no field \"" + std::string(name) + "\"");
  return *found;
}

std::span<std::byte> Batch::bytes_of(std::string_view name, std::size_t number_bytes) const {
  const Field& found = field(name);
  if (dtype_bytes(found.spec.dtype) != number_bytes) {
    refuse("the numbers of \"" + std::string(name) + "\" have " +
           std::to_string(dtype_bytes(found.spec.dtype)) + " bytes each, not " +
           std::to_string(number_bytes));
  }
  return {found.memory.get(), static_cast<std::size_t>(rows) * found.spec.row_bytes()};
}

}  // namespace headrace
