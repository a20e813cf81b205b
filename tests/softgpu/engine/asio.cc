// Asio, compiled for this library alone: it exports only the driver's API.
#include <asio/impl/src.hpp>
