// transfer: moves values of a tape from its device to the host beside it, and back (tape/host_side.h). The values keep
// shape, dtype and bits; backward moves their gradients the other way.
//
// A node of a layer's experts on the host takes three values there and one back:
//   to_host    x [T, H], ids [T, k], weights [T, k]; backward: their gradients to the device
//   to_device  y [T, H]; backward: dy to the host
// What is recorded between the two runs on the device beside the experts: the device waits for y at to_device only.
#pragma once

#include <vector>

#include "tape/tape.h"

namespace hone {

/// Records the transfer of `values` of the device, in one crossing, and returns the host's. Integers have no gradient.
/// Saves nothing.
std::vector<Var> to_host(Tape& tape, const std::vector<Var>& values);

/// Records the transfer of a value of the host, and returns the device's. Saves nothing.
Var to_device(Tape& tape, Var value);

}  // namespace hone
