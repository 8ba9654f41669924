//! LNet over TCP on loopback addresses: nodes, routers, and peers that do not follow the protocol.

mod access;
mod common;
mod faulty_peers;
mod log;
mod other_protocols;
mod partitions;
mod routing;
mod tcp;
