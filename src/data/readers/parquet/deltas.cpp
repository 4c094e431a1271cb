#include "data/readers/parquet/deltas.h"

namespace hone::parquet {

namespace {

constexpr uint64_t kMostInBlock = uint64_t{1} << 20;  // writers have 128 to 4096

}  // namespace

Deltas::Deltas(Bytes bytes) : in_(bytes) {
  block_ = in_.varint();
  miniblocks_ = in_.varint();
  total_ = in_.varint();
  value_ = static_cast<uint64_t>(in_.zigzag());
  const bool fits = block_ > 0 && block_ <= kMostInBlock && miniblocks_ > 0 && miniblocks_ <= block_ &&
                    block_ % miniblocks_ == 0 && block_ / miniblocks_ % 8 == 0;
  if (!fits) fault("a page has blocks of {} integers in {} parts", block_, miniblocks_);
}

void Deltas::ends_early() { fault("a page has fewer values than its header says"); }

void Deltas::next_block() {
  least_ = static_cast<uint64_t>(in_.zigzag());
  widths_ = in_.take(miniblocks_);
}

void Deltas::next_miniblock() {
  if (widths_.empty()) next_block();
  const int width = widths_[0];
  widths_ = widths_.subspan(1);
  if (width > 64) fault("a page has integers of {} bits", width);
  in_miniblock_ = block_ / miniblocks_;
  bits_ = PackedBits(in_.take(in_miniblock_ / 8 * static_cast<uint64_t>(width)), width);
}

Bytes Deltas::after() const {
  Deltas all = *this;
  const uint64_t each = block_ / miniblocks_;
  for (uint64_t left = total_ > 1 ? total_ - 1 : 0; left > 0; left -= left < each ? left : each) all.next_miniblock();
  return all.in_.rest();
}

std::string_view LengthTexts::next() {
  const auto length = static_cast<int32_t>(lengths_.next());
  if (length < 0) fault("a text has {} bytes", length);
  const Bytes text = in_.take(static_cast<uint64_t>(length));
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

void PrefixTexts::next(std::string& text) {
  const auto prefix = static_cast<int32_t>(prefixes_.next());
  if (prefix < 0 || static_cast<size_t>(prefix) > text.size()) {
    fault("a text begins with {} bytes of one that has {}", prefix, text.size());
  }
  text.resize(static_cast<size_t>(prefix));
  text.append(rests_.next());
}

}  // namespace hone::parquet
