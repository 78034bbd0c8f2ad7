// A folder for a test's own files.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace headrace::test {

/// Empty at first; goes away with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    // mkdtemp() puts characters of its own in place of the X.
    std::string path = (std::filesystem::temp_directory_path() / "headrace-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), path);
    }
    root_ = path;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(root_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path(const std::string& name = "") const {
    return name.empty() ? root_.string() : (root_ / name).string();
  }

  /// Folders on the way are made. @returns the file's path.
  std::string write(const std::string& name, std::string_view content) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary)
        .write(content.data(), static_cast<std::streamsize>(content.size()));
    return path(name);
  }

 private:
  std::filesystem::path root_;
};

}  // namespace headrace::test
