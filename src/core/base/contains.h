// contains(): whether a list has a value.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

namespace hone {

template <class Value>
bool contains(const std::vector<Value>& list, const std::type_identity_t<Value>& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace hone
