// The JSON type of the project: keys keep their order (tool schemas, configs written back).
#pragma once

#include <nlohmann/json.hpp>

#include "core/base/ordered_object.h"
#include "core/text/json_fwd.h"
