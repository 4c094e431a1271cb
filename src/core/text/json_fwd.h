// Json as an incomplete type, for headers that only declare it: the definition takes a second to compile.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace hone {
template <class Key, class T, class... Ignored>
class OrderedObject;
using Json = nlohmann::basic_json<OrderedObject>;
}  // namespace hone
