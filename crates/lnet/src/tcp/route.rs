//! Whether an address belongs to this host, according to the kernel's routes: `rtnetlink`.

use super::netlink::{Netlink, short_answer};
use rustix::io::Errno;
use std::io::Result;
use std::net::Ipv4Addr;

const AF_INET: u8 = 2;
const NETLINK_ROUTE: i32 = 0;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTN_LOCAL: u8 = 2;
/// Offset of `rtm_type` in `struct rtmsg`.
const RTM_TYPE: usize = 7;

/// Whether packets to this address stay on this host.
///
/// # Errors
/// The kernel reports an error.
pub(super) fn is_local_address(addr: Ipv4Addr) -> Result<bool> {
    if addr.is_loopback() {
        return Ok(true);
    }
    // `struct rtmsg` (family, length of the address in bits, zeros), and one attribute: its length,
    // its type, the address.
    let mut question = vec![AF_INET, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    question.extend(8u16.to_ne_bytes());
    question.extend(RTA_DST.to_ne_bytes());
    question.extend(addr.octets());
    match Netlink::open(NETLINK_ROUTE)?.query(RTM_GETROUTE, &question) {
        Ok(route) => Ok(*route.get(RTM_TYPE).ok_or_else(short_answer)? == RTN_LOCAL),
        // No route, or a route of type unreachable, prohibit or blackhole.
        Err(e) => match Errno::from_io_error(&e) {
            Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS | Errno::INVAL) => Ok(false),
            _ => Err(e),
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::is_local_address;
    use std::net::Ipv4Addr;

    #[test]
    fn addresses_of_this_host_are_local() {
        assert!(is_local_address(Ipv4Addr::new(127, 99, 1, 2)).unwrap());
        assert!(!is_local_address(Ipv4Addr::new(192, 0, 2, 1)).unwrap());
        for interface in crate::interfaces::all() {
            assert!(is_local_address(interface.addr).unwrap(), "{interface:?}");
        }
    }
}
