//! LNet over TCP on loopback addresses: nodes, routers, and peers that do not follow the protocol.

mod access;
mod common;
mod log;
mod others;
mod partitions;
mod routing;
mod strangers;
mod tcp;
