#include "headrace/source.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "headrace/error.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

// torchvision.datasets.folder.IMG_EXTENSIONS
constexpr std::array<std::string_view, 9> kImageExtensions = {
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"};

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0u) == 0x80; }

/// Takes one code point off the front of `text`, as os.fsdecode() does: a byte that begins no
/// well-formed UTF-8 sequence becomes a lone surrogate, U+DC00 + byte.
char32_t take_code_point(std::string_view& text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};

  char32_t value = length == 1 ? lead : lead & (0x7Fu >> length);
  bool well_formed = lead < 0x80 || (lead >= 0xC2 && lead <= 0xF4 && length <= text.size());
  for (std::size_t i = 1; well_formed && i < length; ++i) {
    well_formed = is_continuation(text[i]);
    value = value << 6 | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  }
  well_formed = well_formed && value >= kSmallest[length] && value <= 0x10FFFF &&
                !(value >= 0xD800 && value <= 0xDFFF);
  text.remove_prefix(well_formed ? length : 1);
  return well_formed ? value : 0xDC00u + lead;
}

/// Whether Python sorts `a` before `b`: by code point. UTF-8 sorts alike as bytes, but not beside
/// names that are no UTF-8: the surrogates that stand for their bytes lie below U+E000.
bool python_less(std::string_view a, std::string_view b) {
  auto same = static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                       a.begin());
  // Back to where a sequence certainly begins in both: after an ASCII character.
  while (same > 0 && static_cast<unsigned char>(a[same - 1]) >= 0x80) --same;
  a.remove_prefix(same);
  b.remove_prefix(same);
  while (!a.empty() && !b.empty()) {
    const char32_t left = take_code_point(a);
    const char32_t right = take_code_point(b);
    if (left != right) return left < right;
  }
  return a.empty() && !b.empty();
}

/// Whether torchvision takes it for an image, by name alone. Python's lower() maps no letter beyond
/// ASCII to one of these extensions' letters, so that ASCII is enough.
bool has_image_extension(std::string_view name) {
  const auto same_letter = [](char in_name, char in_extension) {
    return (in_name >= 'A' && in_name <= 'Z' ? in_name - 'A' + 'a' : in_name) == in_extension;
  };
  return std::any_of(kImageExtensions.begin(), kImageExtensions.end(), [&](auto extension) {
    return name.size() >= extension.size() &&
           std::equal(extension.begin(), extension.end(), name.end() - extension.size(),
                      [&](char e, char n) { return same_letter(n, e); });
  });
}

std::string join(const std::string& folder, const std::string& name) {
  return folder.ends_with('/') ? folder + name : folder + '/' + name;
}

struct Folder {
  std::string path;
  std::vector<std::string> images;
};

/// Appends `path` and the folders under it as os.walk(path, followlinks=True) finds them: what
/// cannot be listed is left out, what cannot be told to be a folder counts as a file. A circle of
/// links ends where the kernel refuses to follow more of them.
void walk(const std::string& path, std::vector<Folder>& found) {
  std::error_code error;
  std::vector<std::string> folders;
  std::vector<std::string> images;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    std::error_code unknown;
    if (entry->is_directory(unknown)) {
      folders.push_back(std::move(name));
    } else if (has_image_extension(name)) {
      images.push_back(std::move(name));
    }
  }
  if (error) return;
  found.push_back({path, std::move(images)});
  for (const auto& name : folders) walk(join(path, name), found);
}

[[noreturn]] void fail_root(const std::string& root, std::error_code error) {
  const bool absent =
      error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  throw Error(absent ? ErrorCode::kNotFound : ErrorCode::kReadFailed,
              "cannot list the folder of classes",
              {.stage = "source", .path = root, .system_errno = error.value()});
}

std::vector<std::string> find_classes(const std::string& root) {
  std::error_code error;
  std::vector<std::string> classes;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unknown;
    if (entry->is_directory(unknown)) classes.push_back(entry->path().filename().string());
    // As torchvision: a dangling link is no class, a link that cannot be followed is an error.
    if (unknown && unknown != std::errc::no_such_file_or_directory) {
      fail_root(entry->path().string(), unknown);
    }
  }
  if (error) fail_root(root, error);
  if (classes.empty()) {
    throw Error(ErrorCode::kNotFound,
                "no folders in it: put the images of each class into a folder of its own",
                {.stage = "source", .path = root});
  }
  std::sort(classes.begin(), classes.end(), python_less);
  return classes;
}

std::vector<FileListSource::Entry> list_images(const std::string& root,
                                               const std::vector<std::string>& classes) {
  std::vector<FileListSource::Entry> entries;
  std::string empty_classes;
  for (std::size_t label = 0; label < classes.size(); ++label) {
    std::vector<Folder> folders;
    walk(join(root, classes[label]), folders);
    // By whole path, not level by level: "a b" comes before "a/b".
    std::sort(folders.begin(), folders.end(),
              [](const Folder& a, const Folder& b) { return python_less(a.path, b.path); });
    const std::size_t before = entries.size();
    for (Folder& folder : folders) {
      std::sort(folder.images.begin(), folder.images.end(), python_less);
      for (const auto& name : folder.images) {
        entries.push_back({join(folder.path, name), static_cast<std::int64_t>(label)});
      }
    }
    if (entries.size() == before) {
      empty_classes += (empty_classes.empty() ? "" : ", ") + classes[label];
    }
  }
  if (!empty_classes.empty()) {
    std::string extensions;
    for (const auto extension : kImageExtensions) (extensions += ' ') += extension;
    throw Error(ErrorCode::kNotFound,
                "no images for the classes " + empty_classes +
                    ": remove these folders, or add files named" + extensions,
                {.stage = "source", .path = root});
  }
  return entries;
}

}  // namespace

FileListSource::FileListSource(std::vector<Entry> entries) : entries_(std::move(entries)) {}

std::int64_t FileListSource::size() const noexcept {
  return static_cast<std::int64_t>(entries_.size());
}

Sample FileListSource::sample(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw Error(ErrorCode::kInvalidArgument,
                "no such sample: there are " + std::to_string(size()) + " of them",
                {.stage = "source", .sample_index = index});
  }
  const Entry& entry = entries_[static_cast<std::size_t>(index)];
  return {.path = entry.path, .label = entry.label, .index = index};
}

ImageFolderSource::ImageFolderSource(const std::string& root)
    : classes_(find_classes(root)), files_(list_images(root, classes_)) {}

std::int64_t ImageFolderSource::size() const noexcept { return files_.size(); }

Sample ImageFolderSource::sample(std::int64_t index) const { return files_.sample(index); }

}  // namespace headrace
