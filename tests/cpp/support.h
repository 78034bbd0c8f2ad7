// Catch2 2 and 3 behind one header, so that no test names either.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <string>

namespace headrace::test {

/// A matcher for texts, e.g. REQUIRE_THAT(error.what(), contains("sample 812")).
#if __has_include(<catch2/catch_all.hpp>)
inline auto contains(const std::string& text) { return Catch::Matchers::ContainsSubstring(text); }
#else
inline auto contains(const std::string& text) { return Catch::Matchers::Contains(text); }
#endif

}  // namespace headrace::test
