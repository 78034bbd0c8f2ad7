#include "headrace/source.h"

#include <utility>

#include "headrace/error.h"

namespace headrace {

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

namespace {

std::vector<FileListSource::Entry> entries_of(const FolderListing& listing) {
  std::vector<FileListSource::Entry> entries;
  for (const ListedFolder& folder : listing.folders) {
    for (const auto& name : folder.images) {
      entries.push_back(
          {folder.path + (folder.path.ends_with('/') ? "" : "/") + name, folder.label});
    }
  }
  return entries;
}

}  // namespace

ImageFolderSource::ImageFolderSource(const std::string& root)
    : ImageFolderSource(list_image_folder(root)) {}

ImageFolderSource::ImageFolderSource(const FolderListing& listing)
    : classes_(listing.classes), files_(entries_of(listing)) {}

std::int64_t ImageFolderSource::size() const noexcept { return files_.size(); }

Sample ImageFolderSource::sample(std::int64_t index) const { return files_.sample(index); }

}  // namespace headrace
