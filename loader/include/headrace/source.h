// What there is to load: samples as byte ranges with labels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headrace/api.h"
#include "headrace/sample_key.h"

namespace HEADRACE_API headrace {

/// What is in memory already: shared, so that it lives as long as anybody needs it. The last owner
/// may let go of it on any thread.
struct MemoryBlock {
  std::shared_ptr<const std::byte> data;
  std::size_t size = 0;

  explicit operator bool() const noexcept { return data != nullptr; }
  std::span<const std::byte> bytes() const noexcept { return {data.get(), size}; }
};

/// One sample: where its image is, and its label.
struct Sample {
  static constexpr std::uint64_t kWholeFile = ~std::uint64_t{0};

  std::string path;  ///< of the file; only a name for messages when the image is in `memory`
  std::uint64_t offset = 0;
  std::uint64_t size = kWholeFile;  ///< bytes, or kWholeFile: from `offset` to the end
  std::int64_t label = 0;
  std::int64_t index = 0;  ///< in the dataset; for messages

  /// A whole image file that need not be read; or, with a width, pixels: uint8, RGB of shape
  /// [height, width, 3] or gray of shape [height, width], as the size tells.
  MemoryBlock memory = {};
  int width = 0;
  int height = 0;
  /// Turn the image as its EXIF orientation says (Hugging Face's datasets do).
  bool upright = false;
  /// The sample's own random stream, with an engine that has one for each sample.
  SampleKey random_key = {};
};

class Source {
 public:
  virtual ~Source() = default;
  virtual std::int64_t size() const noexcept = 0;
  /// @param index  in [0, size()).
  /// @throws Error{kInvalidArgument}: outside that range.
  virtual Sample sample(std::int64_t index) const = 0;
};

/// A list of files with labels.
class FileListSource final : public Source {
 public:
  struct Entry {
    std::string path;
    std::int64_t label = 0;
  };
  explicit FileListSource(std::vector<Entry> entries);
  std::int64_t size() const noexcept override;
  Sample sample(std::int64_t index) const override;

 private:
  std::vector<Entry> entries_;
};

/// What tells whether a directory's entries have changed since it was listed.
struct FolderStamp {
  std::uint64_t inode = 0;
  std::int64_t modified_ns = 0;  ///< since 1970: entries came, went or were renamed
  std::int64_t changed_ns = 0;   ///< since 1970: that, or its permissions
};

/// The images of one directory, in order.
struct ListedFolder {
  std::string path;
  std::int64_t label = 0;
  FolderStamp stamp;  ///< taken before its entries were read
  std::vector<std::string> images;
};

/// A directory with one folder per class, in the order and with the class indices of
/// torchvision.datasets.ImageFolder (torchvision/datasets/folder.py: make_dataset): classes sorted
/// by name; in each, folders and then files sorted, links followed, the extensions of
/// IMG_EXTENSIONS.
struct FolderListing {
  std::vector<std::string> classes;
  FolderStamp root_stamp;
  std::vector<ListedFolder> folders;  ///< with those that hold no images
  /// As long as no stamp changes, neither does the listing. Not so when an entry was a link that
  /// could not be followed.
  bool stable = true;
};

struct ListOptions {
  /// Directories read at a time, at least 1.
  int threads = 8;
  /// Whether a class without images is no error.
  bool allow_empty = false;
};

/// @throws Error{kNotFound}: no such directory, no class folders in it, or a class without images;
/// the message says which and what to do.
FolderListing list_image_folder(const std::string& root, const ListOptions& options = {});

/// The samples of a FolderListing.
class ImageFolderSource final : public Source {
 public:
  /// Lists the directory; throws as list_image_folder() does.
  explicit ImageFolderSource(const std::string& root);
  explicit ImageFolderSource(const FolderListing& listing);

  std::int64_t size() const noexcept override;
  Sample sample(std::int64_t index) const override;
  const std::vector<std::string>& classes() const noexcept { return classes_; }

 private:
  std::vector<std::string> classes_;
  FileListSource files_;
};

}  // namespace headrace
