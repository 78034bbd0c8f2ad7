#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "headrace/error.h"
#include "headrace/source.h"
#include "own_thread.h"

namespace headrace {
namespace {

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

FolderStamp stamp_of(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return {};
  const auto nanoseconds = [](const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  return {status.st_ino, nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)};
}

/// Calls visit(name, is_folder, error) for each entry of a directory; links are followed, and
/// `error` says why one could not be. (std::filesystem's iterator takes three times as long.)
/// @returns why the directory could not be read to its end, or 0: an errno.
template <typename Visit>
int read_directory(const std::string& path, const Visit& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), closedir);
  if (directory == nullptr) return errno;
  while (true) {
    errno = 0;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread has this DIR
    const dirent* entry = readdir(directory.get());
    if (entry == nullptr) return errno;
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    bool is_folder = entry->d_type == DT_DIR;
    int error = 0;
    if (entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN) {
      struct stat status {};
      // By its whole path: only so do circles of links end.
      if (stat(join(path, entry->d_name).c_str(), &status) != 0) error = errno;
      is_folder = error == 0 && S_ISDIR(status.st_mode);
    }
    visit(name, is_folder, error);
  }
}

/// One class: its folder and all below it.
struct ClassListing {
  std::vector<ListedFolder> folders;
  bool stable = true;
  bool has_images = false;
};

/// Appends `path` and the folders under it as os.walk(path, followlinks=True) finds them: what
/// cannot be listed has no images, what cannot be told to be a folder counts as a file. A circle of
/// links ends where the kernel refuses to follow more of them.
void walk(const std::string& path, std::int64_t label, ClassListing& found) {
  ListedFolder folder{.path = path, .label = label, .stamp = stamp_of(path), .images = {}};
  std::vector<std::string> folders;
  const int failure = read_directory(path, [&](std::string_view name, bool is_folder, int error) {
    if (is_folder) {
      folders.emplace_back(name);
    } else if (has_image_extension(name)) {
      folder.images.emplace_back(name);
    }
    if (error != 0) found.stable = false;
  });
  if (failure != 0) {
    folder.images.clear();
    folders.clear();
  }
  std::sort(folder.images.begin(), folder.images.end(), python_less);
  found.has_images = found.has_images || !folder.images.empty();
  found.folders.push_back(std::move(folder));
  for (const auto& name : folders) walk(join(path, name), label, found);
}

ClassListing list_class(const std::string& path, std::int64_t label) {
  ClassListing found;
  walk(path, label, found);
  // By whole path, not level by level: "a b" comes before "a/b".
  std::sort(found.folders.begin(), found.folders.end(),
            [](const auto& a, const auto& b) { return python_less(a.path, b.path); });
  return found;
}

[[noreturn]] void fail_root(const std::string& path, int error) {
  const bool absent = error == ENOENT || error == ENOTDIR;
  throw Error(absent ? ErrorCode::kNotFound : ErrorCode::kReadFailed,
              "cannot list the folder of classes",
              {.stage = "source", .path = path, .system_errno = error});
}

void find_classes(const std::string& root, FolderListing& listing) {
  listing.root_stamp = stamp_of(root);
  const int failure = read_directory(root, [&](std::string_view name, bool is_folder, int error) {
    if (is_folder) listing.classes.emplace_back(name);
    if (error == 0) return;
    listing.stable = false;
    // As torchvision: a dangling link is no class, a link that cannot be followed is an error.
    if (error != ENOENT) fail_root(join(root, std::string(name)), error);
  });
  if (failure != 0) fail_root(root, failure);
  if (listing.classes.empty()) {
    throw Error(ErrorCode::kNotFound,
                "no folders in it: put the images of each class into a folder of its own",
                {.stage = "source", .path = root});
  }
  std::sort(listing.classes.begin(), listing.classes.end(), python_less);
}

/// Calls function(0) to function(count - 1), each once, on that many threads.
/// @throws what the first call that failed threw, when all have ended.
template <typename Function>
void in_parallel(std::size_t count, int threads, const Function& function) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) function(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (failure == nullptr) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    const std::size_t wanted = std::min(count, static_cast<std::size_t>(threads));
    for (std::size_t i = 1; i < wanted; ++i) {
      helpers.emplace_back([&work] {
        become_own_thread("hr-list");
        work();
      });
    }
    work();
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

[[noreturn]] void fail_empty(const std::string& root, const std::string& empty_classes) {
  std::string extensions;
  for (const auto extension : kImageExtensions) (extensions += ' ') += extension;
  throw Error(ErrorCode::kNotFound,
              "no images for the classes " + empty_classes +
                  ": remove these folders, or add files named" + extensions,
              {.stage = "source", .path = root});
}

}  // namespace

FolderListing list_image_folder(const std::string& root, const ListOptions& options) {
  if (options.threads < 1) {
    throw Error(ErrorCode::kInvalidArgument, "threads must be at least 1", {.stage = "source"});
  }
  FolderListing listing;
  find_classes(root, listing);
  std::vector<ClassListing> classes(listing.classes.size());
  in_parallel(classes.size(), options.threads, [&](std::size_t label) {
    classes[label] =
        list_class(join(root, listing.classes[label]), static_cast<std::int64_t>(label));
  });

  std::string empty_classes;
  for (std::size_t label = 0; label < classes.size(); ++label) {
    listing.stable = listing.stable && classes[label].stable;
    if (!classes[label].has_images) {
      empty_classes += (empty_classes.empty() ? "" : ", ") + listing.classes[label];
    }
    std::ranges::move(classes[label].folders, std::back_inserter(listing.folders));
  }
  if (!empty_classes.empty() && !options.allow_empty) fail_empty(root, empty_classes);
  return listing;
}

}  // namespace headrace
