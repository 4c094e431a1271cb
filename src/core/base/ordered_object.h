// The object type of Json: keys in the order of insertion, found in constant time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/sip_hash.h"

namespace hone {

/// The positions of keys in a list that grows at its end: a hash table with a secret key of the process.
class KeyIndex {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  /// Position of `key`, or kNone. `key_at(position)` returns the key there.
  template <class KeyAt>
  uint32_t find(std::string_view key, const KeyAt& key_at) const {
    const uint32_t hash = hash_of(key);
    for (size_t at = hash;; ++at) {
      const Slot& slot = slots_[at & (slots_.size() - 1)];
      if (slot.position == kNone || (slot.hash == hash && key_at(slot.position) == key)) return slot.position;
    }
  }

  /// Adds the next key, which must not exist yet.
  void add(std::string_view key) {
    if (4 * (size_ + 1) > 3 * slots_.size()) grow();
    put({size_++, hash_of(key)});
  }

 private:
  struct Slot {
    uint32_t position = kNone, hash = 0;
  };

  static uint32_t hash_of(std::string_view key) { return static_cast<uint32_t>(sip_hash(key, process_sip_key())); }

  void put(Slot slot) {
    size_t at = slot.hash;
    while (slots_[at & (slots_.size() - 1)].position != kNone) ++at;
    slots_[at & (slots_.size() - 1)] = slot;
  }
  void grow() {
    const std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(std::max<size_t>(64, 2 * slots_.size())));
    for (const Slot& slot : before) {
      if (slot.position != kNone) put(slot);
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);  // size is a power of two; at least a quarter are free
  uint32_t size_ = 0;
};

/// Replaces nlohmann::ordered_map, which compares a key with all others: quadratic for an index of 90,000 tensors. Few
/// keys are compared one by one. Reading never changes it, so several threads may read. Ignores its comparison and
/// allocator arguments.
template <class Key, class T, class... Ignored>
class OrderedObject : public std::vector<std::pair<Key, T>> {
 public:
  using key_type = Key;
  using mapped_type = T;
  using key_compare = std::equal_to<>;
  /// Keys are not const, so a growing list moves them.
  using Container = std::vector<std::pair<Key, T>>;
  using iterator = typename Container::iterator;
  using const_iterator = typename Container::const_iterator;
  using size_type = typename Container::size_type;
  using value_type = typename Container::value_type;

  OrderedObject() = default;
  template <class It>
  OrderedObject(It first, It last) {
    insert(first, last);
  }
  OrderedObject(std::initializer_list<value_type> values) : OrderedObject(values.begin(), values.end()) {}
  OrderedObject(const OrderedObject& other)
      : Container(other), index_(other.index_ ? std::make_unique<KeyIndex>(*other.index_) : nullptr) {}
  OrderedObject(OrderedObject&& other) noexcept = default;
  OrderedObject& operator=(OrderedObject other) noexcept {
    Container::swap(other);
    index_.swap(other.index_);
    return *this;
  }
  ~OrderedObject() = default;

  std::pair<iterator, bool> emplace(std::string_view key, T value) {
    const size_type at = position(key);
    if (at < this->size()) return {this->begin() + static_cast<std::ptrdiff_t>(at), false};
    Container::emplace_back(Key(key), std::move(value));
    if (index_) {
      index_->add(this->back().first);
    } else if (this->size() > kFew) {
      index_again();
    }
    return {std::prev(this->end()), true};
  }
  std::pair<iterator, bool> insert(value_type value) { return emplace(value.first, std::move(value.second)); }
  template <class It, class = typename std::iterator_traits<It>::iterator_category>
  void insert(It first, It last) {
    for (; first != last; ++first) emplace(first->first, first->second);
  }

  T& operator[](std::string_view key) { return emplace(key, T{}).first->second; }
  const T& operator[](std::string_view key) const { return at(key); }
  T& at(std::string_view key) { return const_cast<T&>(std::as_const(*this).at(key)); }
  const T& at(std::string_view key) const {
    const const_iterator found = find(key);
    if (found == this->end()) throw std::out_of_range("key not found");
    return found->second;
  }
  size_type count(std::string_view key) const { return position(key) < this->size() ? 1 : 0; }
  iterator find(std::string_view key) { return this->begin() + static_cast<std::ptrdiff_t>(position(key)); }
  const_iterator find(std::string_view key) const { return this->begin() + static_cast<std::ptrdiff_t>(position(key)); }

  size_type erase(std::string_view key) {
    const iterator found = find(key);
    if (found == this->end()) return 0;
    erase(found);
    return 1;
  }
  iterator erase(iterator position) { return erase(position, std::next(position)); }
  iterator erase(iterator first, iterator last) {
    const iterator next = Container::erase(first, last);
    index_again();
    return next;
  }
  void clear() noexcept {
    Container::clear();
    index_.reset();
  }

 private:
  static constexpr size_t kFew = 16;

  auto key_at() const {
    return [this](uint32_t i) -> std::string_view { return (*this)[Position{i}].first; };
  }
  struct Position {
    uint32_t value;
  };
  const value_type& operator[](Position at) const { return Container::operator[](at.value); }

  /// Returns size() if the key does not exist.
  size_type position(std::string_view key) const {
    if (index_) {
      const uint32_t at = index_->find(key, key_at());
      return at == KeyIndex::kNone ? this->size() : at;
    }
    size_type at = 0;
    while (at < this->size() && Container::operator[](at).first != key) ++at;
    return at;
  }
  void index_again() {
    index_.reset();
    if (this->size() <= kFew) return;
    index_ = std::make_unique<KeyIndex>();
    for (const value_type& member : *this) index_->add(member.first);
  }

  std::unique_ptr<KeyIndex> index_;  // only for more than kFew keys
};

}  // namespace hone
