#include "jpeg_entropy.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

namespace headrace {
namespace {

constexpr int kEndOfBlock = 128;
constexpr int kLong = 64;  ///< code or value do not fit: `length` bits of code, then run and size
constexpr int kLongestCode = 16;
constexpr int kSkipBits = 18;  ///< most of one lookup, so that three need no more than 56 bits
constexpr int kZeroRun = 0xF0;
constexpr int kRestartMask = 0xF8;
constexpr int kFirstRestart = 0xD0;

/// More than the longest MCU, so that only whole MCUs need a check against the end.
constexpr std::size_t kMarginBytes = kJpegMcuBlocks * kJpegBlock * 4 + 8;

/// From the order in the file to that within the block. Goes on for the runs that a damaged file
/// may have behind the last coefficient.
constexpr std::array<std::uint8_t, 128> kNaturalOrder = [] {
  std::array<std::uint8_t, 128> order{};
  order.fill(63);
  int x = 0;
  int y = 0;
  for (std::size_t k = 0; k < kJpegBlock; ++k) {
    order[k] = static_cast<std::uint8_t>(8 * y + x);
    const bool upwards = (x + y) % 2 == 0;
    int& forward = upwards ? x : y;
    int& backward = upwards ? y : x;
    if (forward == 7) {
      ++backward;
    } else {
      ++forward;
      if (backward > 0) --backward;
    }
  }
  return order;
}();
static_assert(kNaturalOrder[1] == 1 && kNaturalOrder[2] == 8 && kNaturalOrder[35] == 56 &&
              kNaturalOrder[36] == 57 && kNaturalOrder[62] == 62);

std::uint64_t load_big_endian(const std::uint8_t* from) {
  std::uint64_t value;
  std::memcpy(&value, from, sizeof value);
  if constexpr (std::endian::native == std::endian::little) value = __builtin_bswap64(value);
  return value;
}

/// What `size` bits mean: those with a leading 0 are negative.
int extend(unsigned bits, int size) {
  const int value = static_cast<int>(bits);
  return size > 0 && value < 1 << (size - 1) ? value - (1 << size) + 1 : value;
}

/// Calls visit(code, length, symbol) in the order of codes; false if they are no prefix code.
template <class Visit>
bool for_each_code(const HuffmanCode& from, Visit visit) {
  unsigned code = 0;
  std::size_t place = 0;
  for (int length = 1; length <= kLongestCode; ++length) {
    const unsigned count = from.counts[static_cast<std::size_t>(length)];
    if (code + count > 1U << length || place + count > from.symbols.size()) return false;
    for (unsigned i = 0; i < count; ++i) visit(code++, length, from.symbols[place++]);
    code <<= 1;
  }
  return true;
}

}  // namespace

int JpegEntropyDecoder::LongCodes::symbol(std::uint64_t bits, int& length,
                                          const HuffmanCode& code) const {
  const auto top = static_cast<std::uint32_t>(bits >> 48);
  for (length = 1; length <= kLongestCode; ++length) {
    const auto l = static_cast<std::size_t>(length);
    if (top < end[l]) {
      const auto value = static_cast<std::int32_t>(top >> (kLongestCode - length));
      const std::int32_t place = value + offset[l];
      return code.symbols[static_cast<std::size_t>(place)];
    }
  }
  return -1;
}

namespace {

template <class LongCodes>
void set_long_codes(const HuffmanCode& from, LongCodes& to) {
  to.end.fill(0);
  std::int32_t place = 0;
  std::int32_t code = 0;
  for (std::size_t length = 1; length <= kLongestCode; ++length) {
    to.offset[length] = place - code;
    const std::int32_t count = from.counts[length];
    if (count > 0) to.end[length] = static_cast<std::uint32_t>(code + count) << (16 - length);
    place += count;
    code = (code + count) << 1;
  }
}

}  // namespace

bool JpegEntropyDecoder::DcTable::build(const HuffmanCode& from) {
  code = from;
  entries.fill({});
  set_long_codes(from, long_codes);
  return for_each_code(from, [&](unsigned value, int length, std::uint8_t symbol) {
    if (length > kDcBits) return;
    const std::size_t first = std::size_t{value} << (kDcBits - length);
    const DcEntry entry{static_cast<std::uint8_t>(length), symbol};
    std::fill_n(entries.begin() + static_cast<std::ptrdiff_t>(first), 1 << (kDcBits - length),
                entry);
  });
}

JpegEntropyDecoder::AcSkip JpegEntropyDecoder::AcTable::join(
    const std::array<AcEntry, 1 << kAcBits>& single, std::size_t bits) {
  int length = 0;
  int advance = 0;
  while (length < kAcBits && advance < kLong) {
    const AcEntry& next = single[(bits << length) & (single.size() - 1)];
    if (next.length == 0 || length + next.length > kAcBits) break;
    const bool is_long = next.advance == kLong;
    const int next_length = next.length + (is_long ? next.second : 0);
    const int next_advance = is_long ? next.first + 1 : next.advance;
    if (length + next_length > kSkipBits) break;
    if (next_advance < kEndOfBlock && advance + next_advance >= kLong) break;
    length += next_length;
    advance += next_advance;
  }
  if (length == 0) advance = kLong;
  return {static_cast<std::uint8_t>(length), static_cast<std::uint8_t>(advance)};
}

bool JpegEntropyDecoder::AcTable::build(const HuffmanCode& from) {
  code = from;
  set_long_codes(from, long_codes);
  std::array<AcEntry, 1 << kAcBits> single;
  single.fill({0, kLong, 0, 0, 0, 0});
  const bool valid = for_each_code(from, [&](unsigned value, int length, std::uint8_t symbol) {
    if (length > kAcBits) return;
    AcEntry* entry = &single[std::size_t{value} << (kAcBits - length)];
    const int run = symbol >> 4;
    const int size = symbol & 15;
    const auto make = [&](int bits, int advance, int number) {
      return AcEntry{static_cast<std::uint8_t>(bits),   static_cast<std::uint8_t>(advance),
                     static_cast<std::uint8_t>(run),    static_cast<std::uint8_t>(run + 1),
                     static_cast<std::int16_t>(number), 0};
    };
    const int spare = kAcBits - length;
    if (size == 0) {
      const bool ends = symbol != kZeroRun;
      std::fill_n(entry, 1 << spare,
                  ends ? AcEntry{static_cast<std::uint8_t>(length), kEndOfBlock, 0, 0, 0, 0}
                       : make(length, run + 1, 0));
    } else if (size > spare) {
      std::fill_n(entry, 1 << spare,
                  AcEntry{static_cast<std::uint8_t>(length), kLong, static_cast<std::uint8_t>(run),
                          static_cast<std::uint8_t>(size), 0, 0});
    } else {
      for (unsigned bits = 0; bits < 1U << size; ++bits) {
        entry = std::fill_n(entry, 1 << (spare - size),
                            make(length + size, run + 1, extend(bits, size)));
      }
    }
  });
  if (!valid) return false;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    AcEntry entry = single[i];
    if (entry.advance < kLong) {
      const AcEntry& other = single[(i << entry.length) & (entries.size() - 1)];
      if (other.advance != kLong && entry.length + other.length <= kAcBits) {
        entry.second = static_cast<std::uint8_t>(entry.advance + other.first);
        entry.second_value = other.first_value;
        entry.length = static_cast<std::uint8_t>(entry.length + other.length);
        entry.advance = static_cast<std::uint8_t>(entry.advance + other.advance);
      }
    }
    entries[i] = entry;
    skips[i] = join(single, i);
  }
  return true;
}

inline void JpegEntropyDecoder::BitReader::refill() {
  bits |= load_big_endian(next) >> count;
  next += (63 - count) >> 3;
  count |= 56;
}

inline void JpegEntropyDecoder::BitReader::drop(int length) {
  bits <<= length;
  count -= length;
}

inline int JpegEntropyDecoder::BitReader::take_value(int size) {
  const int value = extend(static_cast<unsigned>((bits >> 1) >> (63 - size)), size);
  drop(size);
  return value;
}

bool JpegEntropyDecoder::begin(const JpegScan& scan) {
  if (scan.block_count == 0 || scan.block_count > kJpegMcuBlocks || scan.mcus_per_row == 0) {
    return false;
  }
  for (std::size_t i = 0; i < scan.block_count; ++i) {
    const JpegScan::Block& block = scan.blocks[i];
    if (block.component >= kJpegComponents || block.dc_table >= kJpegTables ||
        block.ac_table >= kJpegTables || scan.dc[block.dc_table] == nullptr ||
        scan.ac[block.ac_table] == nullptr) {
      return false;
    }
    blocks_[i] = {block.component, &dc_tables_[block.dc_table], &ac_tables_[block.ac_table]};
  }
  for (std::size_t i = 0; i < kJpegTables; ++i) {
    if (scan.dc[i] != nullptr && !(has_dc_[i] && dc_tables_[i].code == *scan.dc[i])) {
      has_dc_[i] = dc_tables_[i].build(*scan.dc[i]);
      if (!has_dc_[i]) return false;
    }
    if (scan.ac[i] != nullptr && !(has_ac_[i] && ac_tables_[i].code == *scan.ac[i])) {
      has_ac_[i] = ac_tables_[i].build(*scan.ac[i]);
      if (!has_ac_[i]) return false;
    }
  }
  block_count_ = scan.block_count;
  mcus_per_row_ = scan.mcus_per_row;
  restart_interval_ = scan.restart_interval;
  need_columns(0, mcus_per_row_);
  unstuff(scan);
  failed_ = false;
  column_ = 0;
  pending_ = 0;
  segment_ = 0;
  return start_segment();
}

void JpegEntropyDecoder::need_columns(unsigned first, unsigned end) {
  first_column_ = first;
  end_column_ = end;
}

/// Copies the data without the zeros behind FF, up to the marker that ends the scan.
void JpegEntropyDecoder::unstuff(const JpegScan& scan) {
  if (data_.size() < scan.data.size() + kMarginBytes) data_.resize(scan.data.size() + kMarginBytes);
  segment_ends_.clear();
  std::uint8_t* out = data_.data();
  const std::uint8_t* in = scan.data.data();
  const std::uint8_t* const end = in + scan.data.size();
  while (true) {
    const void* found = std::memchr(in, 0xFF, static_cast<std::size_t>(end - in));
    const std::uint8_t* marker = found != nullptr ? static_cast<const std::uint8_t*>(found) : end;
    const auto length = static_cast<std::size_t>(marker - in);
    std::memcpy(out, in, length);
    out += length;
    in = marker;
    if (end - in < 2) break;
    if (in[1] == 0) {
      *out++ = 0xFF;
    } else if ((in[1] & kRestartMask) == kFirstRestart && restart_interval_ > 0) {
      segment_ends_.push_back(static_cast<std::size_t>(out - data_.data()));
    } else {
      break;
    }
    in += 2;
  }
  scan_bytes_ = static_cast<std::size_t>(in - scan.data.data());
  segment_ends_.push_back(static_cast<std::size_t>(out - data_.data()));
  std::memset(out, 0, kMarginBytes);
}

/// False if there is no further segment.
bool JpegEntropyDecoder::start_segment() {
  if (segment_ == segment_ends_.size()) return false;
  const std::size_t start = segment_ == 0 ? 0 : segment_ends_[segment_ - 1];
  reader_ = {data_.data() + start, 0, 0};
  last_dc_.fill(0);
  to_restart_ = restart_interval_;
  return true;
}

/// Of the segment; wraps around when more were used than there are.
std::size_t JpegEntropyDecoder::bits_left() const {
  const auto read = static_cast<std::size_t>(reader_.next - data_.data());
  return 8 * segment_ends_[segment_] - 8 * read + static_cast<std::size_t>(reader_.count);
}

template <bool kStore>
[[gnu::always_inline]] inline bool JpegEntropyDecoder::decode_block(BitReader& reader,
                                                                    const BlockTables& tables,
                                                                    std::uint32_t& dc,
                                                                    std::int16_t* block) {
  reader.refill();
  const DcEntry dc_entry = tables.dc->entries[reader.bits >> (64 - kDcBits)];
  int dc_length = dc_entry.length;
  int dc_size = dc_entry.size;
  if (dc_length == 0) [[unlikely]] {
    dc_size = tables.dc->long_codes.symbol(reader.bits, dc_length, tables.dc->code);
    if (dc_size < 0) return false;
  }
  if (dc_size > 15) [[unlikely]]
    return false;
  reader.drop(dc_length);
  dc += static_cast<std::uint32_t>(reader.take_value(dc_size));
  if constexpr (kStore) block[0] = static_cast<std::int16_t>(dc);

  constexpr int kLookups = 56 / (kStore ? kAcBits : kSkipBits);
  const AcEntry* const entries = tables.ac->entries.data();
  const AcSkip* const skips = tables.ac->skips.data();
  int k = 1;
  while (true) {
    std::conditional_t<kStore, AcEntry, AcSkip> entry;
    std::uint64_t before;
    reader.refill();
    for (int i = 0; i < kLookups; ++i) {
      before = reader.bits;
      if constexpr (kStore) {
        entry = entries[before >> (64 - kAcBits)];
      } else {
        entry = skips[before >> (64 - kAcBits)];
      }
      reader.drop(entry.length);
      if constexpr (kStore) {
        // The second first: past the end of the block both would go to its last coefficient.
        const auto at = static_cast<std::size_t>(k);
        block[kNaturalOrder[at + entry.second]] = entry.second_value;
        block[kNaturalOrder[at + entry.first]] = entry.first_value;
      }
      k += entry.advance;
      if (k >= static_cast<int>(kJpegBlock)) break;
    }
    if (k < static_cast<int>(kJpegBlock)) continue;
    if (entry.advance >= kEndOfBlock && k < kEndOfBlock + static_cast<int>(kJpegBlock)) return true;
    if (entry.advance < kLong && k == static_cast<int>(kJpegBlock)) return true;

    // One symbol by itself: it is too long for the table, or the block ends with the first of two.
    k -= entry.advance;
    int run = 0;
    int size = 0;
    bool known = false;
    if constexpr (kStore) {
      known = entry.advance == kLong && entry.length > 0;
      run = entry.first;
      size = entry.second;
    }
    if (known) {
      reader.refill();
    } else {
      reader.bits = before;
      reader.count += entry.length;
      reader.refill();
      int length;
      const int symbol = tables.ac->long_codes.symbol(reader.bits, length, tables.ac->code);
      if (symbol < 0) return false;
      reader.drop(length);
      run = symbol >> 4;
      size = symbol & 15;
      if (size == 0 && symbol != kZeroRun) return true;
    }
    const int value = reader.take_value(size);
    k += run;
    if (k >= static_cast<int>(kJpegBlock)) return false;
    if constexpr (kStore) {
      block[kNaturalOrder[static_cast<std::size_t>(k)]] = static_cast<std::int16_t>(value);
    }
    if (++k == static_cast<int>(kJpegBlock)) return true;
  }
}

template <bool kStore>
void JpegEntropyDecoder::decode(std::int16_t (*const* blocks)[kJpegBlock], unsigned mcu_count) {
  while (mcu_count > 0 && !failed_) {
    if (restart_interval_ > 0 && to_restart_ == 0) {
      const bool used_up = bits_left() < 8;
      ++segment_;
      if (!used_up || !start_segment()) {
        failed_ = true;
        return;
      }
    }
    const unsigned run = restart_interval_ > 0 ? std::min(mcu_count, to_restart_) : mcu_count;
    const std::size_t end = segment_ends_[segment_];
    BitReader reader = reader_;
    for (unsigned i = 0; i < run; ++i) {
      for (std::size_t b = 0; b < block_count_; ++b) {
        const BlockTables& tables = blocks_[b];
        std::int16_t* block = nullptr;
        if constexpr (kStore) block = *blocks[b];
        if (!decode_block<kStore>(reader, tables, last_dc_[tables.component], block)) {
          failed_ = true;
          return;
        }
      }
      const auto read = static_cast<std::size_t>(reader.next - data_.data());
      if (8 * read - static_cast<std::size_t>(reader.count) > 8 * end) {
        failed_ = true;
        return;
      }
    }
    reader_ = reader;
    if (restart_interval_ > 0) to_restart_ -= run;
    mcu_count -= run;
  }
}

void JpegEntropyDecoder::next(std::int16_t (*const* blocks)[kJpegBlock]) {
  const bool needed = blocks != nullptr && column_ >= first_column_ && column_ < end_column_;
  if (++column_ == mcus_per_row_) column_ = 0;
  if (!needed) {
    ++pending_;
    return;
  }
  if (pending_ > 0) decode<false>(nullptr, std::exchange(pending_, 0));
  decode<true>(blocks, 1);
}

bool JpegEntropyDecoder::finish() {
  if (pending_ > 0) decode<false>(nullptr, std::exchange(pending_, 0));
  return !failed_;
}

bool JpegEntropyDecoder::at_end() const {
  return segment_ + 1 == segment_ends_.size() && bits_left() < 8;
}

}  // namespace headrace
