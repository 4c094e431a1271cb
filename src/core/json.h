// The JSON type of the project: keys keep their order (tool schemas, configs written back).
#pragma once

#include <nlohmann/json.hpp>

#include "core/json_fwd.h"
#include "core/ordered_object.h"
