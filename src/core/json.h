// The one JSON type of the project: keys keep their order (tool schemas, configs written back).
#pragma once

#include <nlohmann/json.hpp>

#include "core/ordered_object.h"

namespace hone {
using Json = nlohmann::basic_json<OrderedObject>;
}
