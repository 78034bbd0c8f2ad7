// What a sample's own random draws depend on.
#pragma once

#include <cstdint>

#include "headrace/api.h"

namespace HEADRACE_API headrace {

/// Names a sample's own random stream, which depends on nothing else.
struct SampleKey {
  std::uint64_t seed = 0;
  std::uint32_t epoch = 0;
  std::uint64_t index = 0;

  bool operator==(const SampleKey&) const = default;
};

}  // namespace headrace
