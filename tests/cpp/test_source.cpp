#include <stdlib.h>

#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include "headrace/error.h"
#include "headrace/source.h"
#include "support.h"
#include "temporary_folder.h"

// The order against torchvision itself is the subject of tests/python/test_source.py.

namespace headrace {
namespace {

/// A folder of empty files.
struct Tree : test::TemporaryFolder {
  explicit Tree(const std::vector<std::string>& files) {
    for (const auto& name : files) write(name, "");
  }
};

template <typename Action>
std::optional<Error> error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

TEST_CASE("file list gives whole files with their labels and indices", "[source]") {
  const FileListSource source({{"b.jpg", 7}, {"a.jpg", -1}});
  REQUIRE(source.size() == 2);
  const Sample sample = source.sample(1);
  CHECK(sample.path == "a.jpg");
  CHECK(sample.label == -1);
  CHECK(sample.index == 1);
  CHECK(sample.offset == 0);
  CHECK(sample.size == Sample::kWholeFile);
}

TEST_CASE("file list refuses an index outside and names it", "[source]") {
  const FileListSource source({{"a.jpg", 0}});
  for (const std::int64_t index : {std::int64_t{-1}, std::int64_t{1}}) {
    const auto error = error_of([&] { (void)source.sample(index); });
    REQUIRE(error);
    CHECK(error->code() == ErrorCode::kInvalidArgument);
    CHECK(error->context().sample_index == index);
  }
}

TEST_CASE("image folder orders folders by whole path, each with its files", "[source]") {
  const Tree tree({"b/x.jpg", "a/a/b/1.jpg", "a/a b/2.jpg", "a/a/3.PNG", "a/a.d/4.jpg", "a/5.txt"});
  const ImageFolderSource source(tree.path());
  CHECK(source.classes() == std::vector<std::string>{"a", "b"});
  std::vector<std::string> paths;
  for (std::int64_t i = 0; i < source.size(); ++i) paths.push_back(source.sample(i).path);
  // Not folder by folder: "a/a/b" would come before "a/a b" then.
  CHECK(paths == std::vector<std::string>{tree.path("a/a/3.PNG"), tree.path("a/a b/2.jpg"),
                                          tree.path("a/a.d/4.jpg"), tree.path("a/a/b/1.jpg"),
                                          tree.path("b/x.jpg")});
  CHECK(source.sample(3).label == 0);
  CHECK(source.sample(4).label == 1);
}

TEST_CASE("image folder says which directory is missing", "[source]") {
  const auto error = error_of([] { ImageFolderSource("no/such/directory"); });
  REQUIRE(error);
  CHECK(error->code() == ErrorCode::kNotFound);
  CHECK(error->context().system_errno == ENOENT);
  CHECK_THAT(error->what(), test::contains("source: no/such/directory: "));
  CHECK_THAT(error->what(), test::contains("No such file or directory"));
}

TEST_CASE("image folder says which classes have no images", "[source]") {
  const Tree tree({"a/x.jpg", "empty/x.txt", "void/y/z"});
  const auto error = error_of([&] { ImageFolderSource(tree.path()); });
  REQUIRE(error);
  CHECK(error->code() == ErrorCode::kNotFound);
  CHECK_THAT(error->what(), test::contains("empty, void"));
}

TEST_CASE("error text has each part that is known, and the message alone stays at hand",
          "[error]") {
  const Error full(ErrorCode::kReadFailed, "cannot read",
                   {.stage = "read", .path = "x.jpg", .sample_index = 812, .system_errno = EIO});
  CHECK(std::string(full.what()) == "read: x.jpg (sample 812): cannot read: Input/output error");
  CHECK(full.message() == "cannot read");
  CHECK(std::string(Error(ErrorCode::kStopped, "stopped", {.stage = "engine"}).what()) ==
        "engine: stopped");
}

}  // namespace
}  // namespace headrace
