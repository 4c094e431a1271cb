// The one JSON type of the project: keys keep their order (tool schemas, configs written back).
#pragma once

#include <nlohmann/json.hpp>

namespace hone {
using Json = nlohmann::ordered_json;
}
