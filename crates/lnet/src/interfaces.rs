//! Network interfaces of this machine: addresses, netmasks, NUMA nodes, speed. [`resolve`] turns
//! the interfaces that `networks=` names into those that [`crate::Lnet::add_ni`] takes.

use crate::net_syntax::net_name;
use crate::{LnetError, NetSpec, NiSpec};
use cpt::CptTable;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::fs;
use std::net::Ipv4Addr;
use wire::Nid;

/// One address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InterfaceAddress {
    pub(crate) name: String,
    pub(crate) addr: Ipv4Addr,
    pub(crate) mask: Ipv4Addr,
    pub(crate) loopback: bool,
}

/// All IPv4 addresses of interfaces that are up; none if the system does not list them.
pub(crate) fn all() -> Vec<InterfaceAddress> {
    let Ok(list) = getifaddrs() else { return Vec::new() };
    let ipv4 = |a: Option<nix::sys::socket::SockaddrStorage>| {
        a.as_ref().and_then(|a| a.as_sockaddr_in()).map(|a| a.ip())
    };
    list.filter(|i| i.flags.contains(InterfaceFlags::IFF_UP))
        .filter_map(|i| {
            Some(InterfaceAddress {
                addr: ipv4(i.address)?,
                mask: ipv4(i.netmask).unwrap_or(Ipv4Addr::BROADCAST),
                loopback: i.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                name: i.interface_name,
            })
        })
        .collect()
}

/// The interface with this address. All of 127.0.0.0/8 belongs to the loopback interface.
pub(crate) fn with_address(addr: Ipv4Addr) -> Option<InterfaceAddress> {
    let all = all();
    let exact = all.iter().find(|i| i.addr == addr);
    exact
        .or_else(|| all.iter().find(|i| i.loopback && addr.is_loopback()))
        .cloned()
}

/// Whether an interface of this machine has this address.
pub fn is_of_this_host(addr: Ipv4Addr) -> bool {
    with_address(addr).is_some()
}

/// Resolves the interfaces of `networks=` on this machine.
///
/// # Errors
///
/// An interface does not exist, is down, or has no IPv4 address; or a network names none and there
/// is only the loopback interface.
pub fn resolve(nets: &[NetSpec]) -> Result<Vec<NiSpec>, LnetError> {
    resolve_among(nets, &all())
}

fn resolve_among(nets: &[NetSpec], available: &[InterfaceAddress]) -> Result<Vec<NiSpec>, LnetError> {
    let mut specs = Vec::new();
    for net in nets {
        let network = net_name(net.number);
        let spec = |i: &InterfaceAddress, addr: Ipv4Addr, cpts: &Option<Vec<usize>>| NiSpec {
            interface: Some(i.name.clone()),
            cpts: cpts.clone().or_else(|| net.cpts.clone()),
            ..NiSpec::new(Nid::tcp(addr, net.number))
        };
        if net.interfaces.is_empty() {
            let first = available.iter().find(|i| !i.loopback);
            let first = first.ok_or_else(|| LnetError::Interface {
                network: network.clone(),
                why: "this machine has no interface with an IPv4 address except the loopback: name it explicitly, as in tcp(lo)".into(),
            })?;
            specs.push(spec(first, first.addr, &None));
        }
        for named in &net.interfaces {
            let by_address = named.name.parse::<Ipv4Addr>().ok();
            let found = match by_address {
                None => available.iter().find(|i| i.name == named.name),
                Some(addr) => (available.iter().find(|i| i.addr == addr))
                    .or_else(|| available.iter().find(|i| i.loopback && addr.is_loopback())),
            };
            let found = found.ok_or_else(|| {
                let mut names: Vec<&str> = available.iter().map(|i| i.name.as_str()).collect();
                names.dedup();
                let why = format!(
                    "no interface {} is up with an IPv4 address (available: {})",
                    named.name,
                    names.join(", ")
                );
                LnetError::Interface {
                    network: network.clone(),
                    why,
                }
            })?;
            specs.push(spec(found, by_address.unwrap_or(found.addr), &named.cpts));
        }
    }
    Ok(specs)
}

/// The partitions with CPUs of the interface's NUMA node; empty if the node is unknown.
pub(crate) fn cpts_near(interface: &str, cpts: &CptTable) -> Vec<usize> {
    let node = fs::read_to_string(format!("/sys/class/net/{interface}/device/numa_node"));
    // Virtual interfaces have no such file; -1 means that the machine does not report the node.
    let Some(node) = node.ok().and_then(|n| n.trim().parse::<usize>().ok()) else {
        return Vec::new();
    };
    let cpus = fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"));
    let cpus = cpus
        .ok()
        .and_then(|list| cpt::parse_list(&list).ok())
        .unwrap_or_default();
    let on_node = |cpt: &&cpt::Cpt| cpt.cpus().iter().any(|cpu| cpus.contains(cpu));
    cpts.iter().filter(on_node).map(|cpt| cpt.id().0).collect()
}

/// Bulk connections in each direction that suit an interface's speed: one if the speed is unknown
/// or below 4 Gbit/s, and one more for each factor of four above 1 Gbit/s (two for 10 Gbit/s, four
/// for 100).
pub(crate) fn connections_for(interface: Option<&str>) -> u32 {
    let speed = interface.and_then(|name| fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok());
    let mbits = speed.and_then(|s| s.trim().parse::<u32>().ok()).unwrap_or(0);
    (mbits / 1000).checked_ilog2().map_or(1, |log| log / 2 + 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{InterfaceAddress, all, resolve_among};
    use crate::parse_networks;
    use std::net::Ipv4Addr;

    fn machine() -> Vec<InterfaceAddress> {
        let interface = |name: &str, addr: [u8; 4], loopback| InterfaceAddress {
            name: name.into(),
            addr: addr.into(),
            mask: Ipv4Addr::new(255, 255, 255, 0),
            loopback,
        };
        vec![
            interface("lo", [127, 0, 0, 1], true),
            interface("eth0", [10, 0, 0, 1], false),
            interface("eth1", [10, 0, 1, 1], false),
        ]
    }

    #[test]
    fn the_default_is_the_first_interface_except_loopback() {
        let specs = resolve_among(&parse_networks("tcp,tcp1(eth1[1])[0]").unwrap(), &machine()).unwrap();
        let resolved: Vec<_> = specs
            .iter()
            .map(|s| (s.nid.to_string(), s.interface.clone().unwrap(), s.cpts.clone()))
            .collect();
        let expected = [
            ("10.0.0.1@tcp".to_owned(), "eth0".to_owned(), None),
            ("10.0.1.1@tcp1".to_owned(), "eth1".to_owned(), Some(vec![1])),
        ];
        assert_eq!(resolved, expected);
    }

    #[test]
    fn an_interface_can_be_named_by_its_address() {
        let specs = resolve_among(
            &parse_networks("tcp(10.0.1.1),tcp1(127.0.0.9)").unwrap(),
            &machine(),
        )
        .unwrap();
        let resolved: Vec<_> = specs.iter().map(|s| s.nid.to_string()).collect();
        assert_eq!(resolved, ["10.0.1.1@tcp", "127.0.0.9@tcp1"]);
    }

    #[test]
    fn a_missing_interface_is_reported_with_the_available_ones() {
        let error = resolve_among(&parse_networks("tcp(ib0)").unwrap(), &machine())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no interface ib0") && error.contains("lo, eth0, eth1"),
            "{error}"
        );
        let error = resolve_among(&parse_networks("tcp").unwrap(), &machine()[..1])
            .unwrap_err()
            .to_string();
        assert!(error.contains("tcp(lo)"), "{error}");
    }

    #[test]
    fn the_loopback_interface_is_listed() {
        assert!(all().iter().any(|i| i.loopback && i.addr.is_loopback()));
    }
}
