// Asio, compiled for this library alone: what it exports is the driver's API.
#include <asio/impl/src.hpp>
