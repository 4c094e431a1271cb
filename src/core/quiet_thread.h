// A thread beside the run that signals leave alone.
#pragma once

#include <functional>
#include <thread>

namespace hone {

/// Starts `body` in a thread in which all signals are blocked: SIGTERM and SIGINT reach the thread that trains, and a
/// connection that a peer has closed is an error of write(), not a SIGPIPE that ends the program. Threads that `body`
/// starts inherit that.
std::thread quiet_thread(std::function<void()> body);

}  // namespace hone
