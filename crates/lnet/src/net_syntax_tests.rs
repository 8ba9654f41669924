//! Accepted syntax of `networks=` and `routes=`, and the message for each mistake.
#![allow(clippy::unwrap_used)]

use super::{IfSpec, NetSpec, RouteSpec, networks_text, parse_networks, parse_routes, routes_text};

fn iface(name: &str, cpts: Option<&[usize]>) -> IfSpec {
    IfSpec {
        name: name.into(),
        cpts: cpts.map(<[usize]>::to_vec),
    }
}

#[test]
fn networks_with_interfaces_and_partitions_are_parsed() {
    let nets = parse_networks("tcp0(eth0, eth1[2,3])[0,1],tcp7(eth2), tcp2[1], tcp3").unwrap();
    let expected = [
        (
            0,
            vec![iface("eth0", None), iface("eth1", Some(&[2, 3]))],
            Some(vec![0, 1]),
        ),
        (7, vec![iface("eth2", None)], None),
        (2, vec![], Some(vec![1])),
        (3, vec![], None),
    ];
    let expected = expected.map(|(number, interfaces, cpts)| NetSpec {
        number,
        interfaces,
        cpts,
    });
    assert_eq!(nets, expected);
    assert_eq!(
        parse_networks("tcp(eth0)[0-3/2]").unwrap()[0].cpts,
        Some(vec![0, 2])
    );
}

#[test]
fn each_mistake_in_networks_has_its_message() {
    for (text, message) in [
        (
            "o2ib0(ib0)[0,1],tcp(eth0)[2,3]",
            "o2ib0 is not supported: only tcp",
        ),
        ("tcp(eth0),tcp(eth1)", "named twice: list its interfaces together"),
        ("tcp(eth0,eth0)", "interface eth0 is named twice"),
        ("tcp(eth0", "not closed"),
        ("tcp(eth0)]", "without an opening bracket"),
        ("tcp(eth0)[]", "[] names no partition"),
        ("tcp(eth0)[x]", "'x' is not a number"),
        ("tcp(eth0)0", "expected partitions such as [0,1], found '0'"),
        ("tcp()", "'' is not the name of an interface"),
        ("tcpx", "tcpx is not a network"),
        ("tcp99999", "at most 65535"),
        ("tcp,,tcp1", "between the commas"),
        ("", "between the commas"),
        ("lo", "always exists"),
    ] {
        let error = parse_networks(text).unwrap_err().to_string();
        assert!(
            error.contains(message) && error.contains("networks"),
            "{text}: {error}"
        );
    }
}

#[test]
fn routes_with_hops_priorities_and_lists_are_parsed() {
    let net = |n: u32| 0x0002_0000 | n;
    let route = |n, gateway: &str, hop, priority| RouteSpec {
        net: net(n),
        gateway: gateway.parse().unwrap(),
        hop,
        priority,
    };
    let text = "tcp1 2 192.168.0.[1-2]@tcp:5; tcp[2,3] 10.0.0.1@tcp 10.0.0.2@tcp\ntcp4 10.0.0.3@tcp1";
    let expected = [
        route(1, "192.168.0.1@tcp", Some(2), 5),
        route(1, "192.168.0.2@tcp", Some(2), 5),
        route(2, "10.0.0.1@tcp", None, 0),
        route(2, "10.0.0.2@tcp", None, 0),
        route(3, "10.0.0.1@tcp", None, 0),
        route(3, "10.0.0.2@tcp", None, 0),
        route(4, "10.0.0.3@tcp1", None, 0),
    ];
    assert_eq!(parse_routes(text).unwrap(), expected);
    assert_eq!(parse_routes("").unwrap(), []);
}

#[test]
fn each_mistake_in_routes_has_its_message() {
    for (text, message) in [
        ("tcp1", "names no router"),
        ("tcp1 3", "names no router"),
        ("tcp1 0 10.0.0.1@tcp", "from 1 to 255"),
        ("tcp1 10.0.0.1@tcp1", "on the destination network itself"),
        ("o2ib 10.0.0.1@tcp", "o2ib is not supported"),
        ("tcp1 10.0.0.1", "not the NID of a router"),
        ("tcp1 10.0.0.1@tcp:x", "not a priority"),
        ("tcp1 10.0.0.[1-4000]@tcp", "more than 1024"),
        ("tcp1 10.0.0.[1@tcp", "'[' without ']'"),
        ("tcp1 10.0.0.999@tcp", "NID"),
    ] {
        let error = parse_routes(text).unwrap_err().to_string();
        assert!(
            error.contains(message) && error.contains("routes"),
            "{text}: {error}"
        );
    }
}

#[test]
fn parsed_settings_are_formatted_unchanged() {
    let text = "tcp(eth0,eth1[2,3])[0,1],tcp7(eth2),tcp2[1]";
    assert_eq!(networks_text(&parse_networks(text).unwrap()), text);
    let text = "tcp1 2 192.168.0.1@tcp:5; tcp3 10.0.0.1@tcp";
    assert_eq!(routes_text(&parse_routes(text).unwrap()), text);
}
