// The library's version, and what it promises.
#pragma once

#include "headrace/api.h"

namespace HEADRACE_API headrace {

/// Of the library that is linked, "major.minor.patch", by https://semver.org.
///
/// Stable are the names, signatures and documented behaviour in these headers, Transform's JSON,
/// ShuffledOrder's permutations, the target headrace::headrace and the pkg-config name headrace.
/// A release that breaks one of them is a new major version, or while the major version is 0 a new
/// minor one. That the pixels are Pillow's is promised of every version: a difference is a bug, and
/// its repair a patch. Nothing is promised of Engine::Parts, of the texts of errors and doubts, or
/// of the binary interface: a program is built again for each minor version.
const char* version() noexcept;

}  // namespace headrace
