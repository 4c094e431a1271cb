#include "data/readers/parquet/page_values.h"

#include <algorithm>

namespace hone::parquet {

namespace {

constexpr size_t kMostPrefixed = size_t{512} << 20;  // bytes of a call: each text may repeat all of the one before

/// Bytes of a value as it stands in a page; 0 for booleans, which take a bit, and texts.
size_t width_of(const Leaf& leaf) {
  switch (leaf.physical) {
    case Physical::kInt32:
    case Physical::kFloat:
      return 4;
    case Physical::kInt64:
    case Physical::kDouble:
      return 8;
    case Physical::kInt96:
      return 12;
    case Physical::kFixedBytes:
      return static_cast<size_t>(leaf.length);
    case Physical::kBoolean:
    case Physical::kByteArray:
      break;
  }
  return 0;
}

bool can_have(Physical physical, Encoding encoding) {
  const bool integer = physical == Physical::kInt32 || physical == Physical::kInt64;
  const bool floating = physical == Physical::kFloat || physical == Physical::kDouble;
  switch (encoding) {
    case Encoding::kPlain:
      return true;
    case Encoding::kPlainDictionary:
    case Encoding::kRleDictionary:
      return physical != Physical::kBoolean;
    case Encoding::kRle:
      return physical == Physical::kBoolean;
    case Encoding::kDeltaBinaryPacked:
      return integer;
    case Encoding::kDeltaLengthByteArray:
      return physical == Physical::kByteArray;
    case Encoding::kDeltaByteArray:
      return physical == Physical::kByteArray || physical == Physical::kFixedBytes;
    case Encoding::kByteStreamSplit:
      return integer || floating || physical == Physical::kFixedBytes;
    case Encoding::kBitPacked:
      break;
  }
  return false;
}

bool is_index(Encoding encoding) {
  return encoding == Encoding::kPlainDictionary || encoding == Encoding::kRleDictionary;
}

/// The sign of a 32-bit integer, in 64 bits.
uint64_t sign_extended(uint32_t value) { return static_cast<uint64_t>(int64_t{static_cast<int32_t>(value)}); }

std::string_view text_view(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace

bool holds_bytes(Physical physical) {
  return physical == Physical::kByteArray || physical == Physical::kFixedBytes || physical == Physical::kInt96;
}

PageValues::PageValues(const Leaf& leaf, Encoding encoding, Bytes bytes, const Values* dictionary)
    : physical_(leaf.physical), encoding_(encoding), width_(width_of(leaf)), in_(bytes), dictionary_(dictionary) {
  if (!can_have(physical_, encoding)) {
    fault("the encoding {} of a page is not one of its type", static_cast<int>(encoding));
  }
  switch (encoding) {
    case Encoding::kPlain:
      bits_ = PackedBits(bytes, 1);
      bits_left_ = uint64_t{bytes.size()} * 8;
      break;
    case Encoding::kPlainDictionary:
    case Encoding::kRleDictionary: {
      if (!dictionary_) fault("a page needs a dictionary that is not there");
      if (bytes.empty()) break;  // the page has only nulls
      const int width = in_.byte();
      runs_ = BitRuns(in_.rest(), width);
      break;
    }
    case Encoding::kRle:
      if (!bytes.empty()) runs_ = BitRuns(in_.take(in_.word()), 1);
      break;
    case Encoding::kDeltaBinaryPacked:
      if (!bytes.empty()) deltas_ = Deltas(bytes);
      break;
    case Encoding::kDeltaLengthByteArray:
      if (!bytes.empty()) length_texts_ = LengthTexts(bytes);
      break;
    case Encoding::kDeltaByteArray:
      if (!bytes.empty()) prefix_texts_ = PrefixTexts(bytes);
      break;
    case Encoding::kByteStreamSplit:
      if (bytes.size() % width_ != 0) fault("a page of {} bytes has values of {}", bytes.size(), width_);
      break;
    case Encoding::kBitPacked:
      break;
  }
}

void PageValues::read(size_t count, Values& values) {
  values.numbers.clear();
  values.texts.clear();
  values.own.clear();
  if (is_index(encoding_)) {
    look_up(count, values);
  } else if (holds_bytes(physical_)) {
    read_texts(count, values);
  } else {
    read_numbers(count, values.numbers);
  }
}

void PageValues::look_up(size_t count, Values& values) {
  indices_.resize(count);
  runs_.read(indices_.data(), count);
  const auto fill = [&](const auto& from, auto& to) {
    to.resize(count);
    for (size_t i = 0; i < count; ++i) {
      if (indices_[i] >= from.size()) fault("entry {} of a dictionary of {} is used", indices_[i], from.size());
      to[i] = from[indices_[i]];
    }
  };
  if (holds_bytes(physical_)) {
    fill(dictionary_->texts, values.texts);
  } else {
    fill(dictionary_->numbers, values.numbers);
  }
}

void PageValues::read_numbers(size_t count, std::vector<uint64_t>& numbers) {
  numbers.resize(count);
  if (encoding_ == Encoding::kRle) return runs_.read(numbers.data(), count);
  if (encoding_ == Encoding::kDeltaBinaryPacked) {
    for (uint64_t& number : numbers) number = static_cast<uint64_t>(deltas_.next());
  } else if (physical_ == Physical::kBoolean) {
    if (count > bits_left_) fault("a page has fewer values than its header says");
    bits_left_ -= count;
    for (uint64_t& number : numbers) number = bits_.next();
  } else if (encoding_ == Encoding::kByteStreamSplit) {
    const Bytes all = in_.rest();
    const size_t stream = all.size() / width_;
    if (count > stream - streams_at_) fault("a page has fewer values than its header says");
    for (uint64_t& number : numbers) {
      number = 0;
      for (size_t byte = 0; byte < width_; ++byte) {
        number |= uint64_t{all[byte * stream + streams_at_]} << (8 * byte);
      }
      ++streams_at_;
    }
  } else {
    const uint8_t* bytes = in_.take(uint64_t{count} * width_).data();
    for (uint64_t& number : numbers) {
      number = width_ == 4 ? little_endian<uint32_t>(bytes) : little_endian<uint64_t>(bytes);
      bytes += width_;
    }
  }
  if (physical_ == Physical::kInt32) {
    for (uint64_t& number : numbers) number = sign_extended(static_cast<uint32_t>(number));
  }
}

void PageValues::read_texts(size_t count, Values& values) {
  std::vector<std::string_view>& texts = values.texts;
  switch (encoding_) {
    case Encoding::kDeltaLengthByteArray:
      for (size_t i = 0; i < count; ++i) texts.push_back(length_texts_.next());
      break;
    case Encoding::kDeltaByteArray:
      for (size_t i = 0, bytes = 0; i < count; ++i) {
        prefix_texts_.next(last_text_);
        bytes += last_text_.size();
        if (bytes > kMostPrefixed)
          fault("{} texts with common beginnings have more than {} bytes", count, kMostPrefixed);
        if (width_ > 0 && last_text_.size() != width_) {
          fault("a value has {} bytes, its type {}", last_text_.size(), width_);
        }
        values.own.push_back(last_text_);
      }
      texts.assign(values.own.begin(), values.own.end());
      break;
    case Encoding::kByteStreamSplit:
      gather(count, values);
      break;
    default:
      texts.reserve(count);
      for (size_t i = 0; i < count; ++i) texts.push_back(text_view(in_.take(width_ > 0 ? width_ : in_.word())));
  }
}

void PageValues::gather(size_t count, Values& values) {
  const Bytes all = in_.rest();
  const size_t stream = all.size() / width_;
  if (count > stream - streams_at_) fault("a page has fewer values than its header says");
  for (size_t i = 0; i < count; ++i, ++streams_at_) {
    std::string& value = values.own.emplace_back(width_, '\0');
    for (size_t byte = 0; byte < width_; ++byte) value[byte] = static_cast<char>(all[byte * stream + streams_at_]);
  }
  values.texts.assign(values.own.begin(), values.own.end());
}

}  // namespace hone::parquet
