//! LNet over TCP on loopback addresses: nodes, routers, and peers that do not follow the protocol.

mod access;
mod faulty_peers;
mod other_protocols;
mod partitions;
mod routing;
mod tcp;
