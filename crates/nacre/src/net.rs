//! Where a process is on the network: its address and the port of its site.
//!
//! NIDs have no port: all nodes of a site use the same one. It is Lustre's 988 where this process may listen on it,
//! otherwise 7988. On loopback every process needs an address of its own, so that several live side by side: the first
//! free one from 127.0.0.1 on.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lnet::LnetConfig;
use wire::Nid;

use crate::cli::Net;

/// Lustre's port.
const PORT: u16 = 988;
/// The port of those who may not use Lustre's.
const PORT_UNPRIVILEGED: u16 = 7988;
/// How long an MGS may take to accept a connection that only looks for its port.
const KNOCK: Duration = Duration::from_secs(2);

/// Where a process will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its NID.
    pub(crate) nid: Nid,
    /// The port of its site.
    pub(crate) port: u16,
    /// Whether it accepts connections; a client that may not still makes them.
    pub(crate) listen: bool,
}

/// Where a server is expected to be, when it is not told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expected {
    /// Here and nowhere else.
    pub(crate) at: Option<Nid>,
    /// Here if that is free.
    pub(crate) rather: Option<Nid>,
    /// Not here: others will be.
    pub(crate) not: Vec<Nid>,
}

/// Where a process is that is told its networks: its first NID; it listens if it can on all. Nothing if it is not told.
fn on_networks(net: &Net, lnet: &LnetConfig, port: impl Fn() -> u16) -> Result<Option<Place>> {
    if lnet.networks.is_empty() {
        return Ok(None);
    }
    if net.listen.is_some() {
        bail!("--listen and networks= both say where to be: give one of them");
    }
    let nids: Vec<Nid> = lnet::resolve(&lnet.networks)?.iter().map(|ni| ni.nid).collect();
    let port = net.port.unwrap_or_else(port);
    let listen = nids.iter().all(|nid| try_listen(nid.addr(), port).is_ok());
    let nid = *nids.first().context("no network has an interface")?;
    Ok(Some(Place { nid, port, listen }))
}

/// A server's place: it must listen.
pub(crate) fn for_server(net: &Net, lnet: &LnetConfig, expected: &Expected) -> Result<Place> {
    if let Some(place) = on_networks(net, lnet, own_port)? {
        // What is in the way is said when it listens there.
        return Ok(Place {
            listen: true,
            ..place
        });
    }
    let port = match net.port {
        Some(port) => port,
        None => own_port(),
    };
    let place = |nid| Place {
        nid,
        port,
        listen: true,
    };
    let Some(nid) = net.listen.or(expected.at) else {
        let rather = expected.rather.filter(|nid| try_listen(nid.addr(), port).is_ok());
        return Ok(place(match rather {
            Some(nid) => nid,
            None => free_loopback(port, &expected.not)?,
        }));
    };
    try_listen(nid.addr(), port).with_context(|| cannot_listen(nid, port))?;
    Ok(place(nid))
}

/// A client's place: on loopback when the MGS is there, otherwise where this machine reaches the MGS from.
pub(crate) fn for_client(net: &Net, lnet: &LnetConfig, mgs: &[Nid]) -> Result<Place> {
    let first = mgs.first().context("no NID of an MGS")?;
    // A router uses the port of its site, too.
    let router = lnet.routes.iter().find(|route| route.net == first.net());
    let knock_at = router.map_or(*first, |route| route.gateway);
    if let Some(place) = on_networks(net, lnet, || port_of(knock_at.addr()))? {
        return Ok(place);
    }
    let port = match net.port {
        Some(port) => port,
        None => port_of(first.addr()),
    };
    if let Some(nid) = net.listen {
        try_listen(nid.addr(), port).with_context(|| cannot_listen(nid, port))?;
        return Ok(Place {
            nid,
            port,
            listen: true,
        });
    }
    if first.addr().is_loopback() {
        return match free_loopback(port, mgs) {
            Ok(nid) => Ok(Place {
                nid,
                port,
                listen: true,
            }),
            // A user's client of a site that uses a privileged port: it only makes connections.
            Err(_) if port < 1024 => Ok(Place {
                nid: unshared_loopback(),
                port,
                listen: false,
            }),
            Err(e) => Err(e),
        };
    }
    let nid = Nid::tcp(address_towards(first.addr())?, first.net_number());
    let listen = try_listen(nid.addr(), port).is_ok();
    Ok(Place { nid, port, listen })
}

fn cannot_listen(nid: Nid, port: u16) -> String {
    let advice = match try_listen(nid.addr(), port).map_err(|e| e.kind()) {
        Err(ErrorKind::AddrInUse) => {
            "another process listens there: stop it, or choose another --listen or --port"
        }
        Err(ErrorKind::PermissionDenied) => {
            "ports below 1024 are for root: choose --port 7988 for all nodes, or give the binary CAP_NET_BIND_SERVICE"
        }
        Err(ErrorKind::AddrNotAvailable) => {
            "no interface of this machine has that address: choose another --listen"
        }
        _ => "choose another --listen or --port",
    };
    format!("cannot listen on {nid} port {port} ({advice})")
}

fn try_listen(addr: Ipv4Addr, port: u16) -> std::io::Result<()> {
    TcpListener::bind((addr, port)).map(drop)
}

/// 988 where this process may listen on it.
fn own_port() -> u16 {
    match try_listen(Ipv4Addr::LOCALHOST, PORT) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => PORT_UNPRIVILEGED,
        _ => PORT,
    }
}

/// The port at which an MGS is there: 988, or 7988 when something answers there only. A Lustre server is not knocked at
/// where it listens: it logs an error for who comes and says nothing.
fn port_of(mgs: Ipv4Addr) -> u16 {
    port_that(|port| TcpStream::connect_timeout(&SocketAddr::from((mgs, port)), KNOCK).is_ok())
}

fn port_that(answers: impl Fn(u16) -> bool) -> u16 {
    if answers(PORT_UNPRIVILEGED) && !answers(PORT) {
        PORT_UNPRIVILEGED
    } else {
        PORT
    }
}

/// The first loopback address at which nobody listens on the port, and that belongs to nobody who may come later.
fn free_loopback(port: u16, not: &[Nid]) -> Result<Nid> {
    let candidates = (1..=254).map(|last| Ipv4Addr::new(127, 0, 0, last));
    for addr in candidates.filter(|a| not.iter().all(|nid| nid.addr() != *a)) {
        match try_listen(addr, port) {
            Ok(()) => return Ok(Nid::tcp(addr, 0)),
            Err(e) if e.kind() == ErrorKind::AddrInUse => {}
            Err(_) => bail!(cannot_listen(Nid::tcp(addr, 0), port)),
        }
    }
    bail!(
        "every address from 127.0.0.1 to 127.0.0.254 is taken on port {port}: choose one with --listen, or another --port"
    )
}

/// A loopback address that no other process of ours takes: made from the process id, outside of what listeners use.
fn unshared_loopback() -> Nid {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Nid::tcp(Ipv4Addr::new(127, a | 0x80, b, c), 0)
}

/// The address from which this machine reaches another.
fn address_towards(to: Ipv4Addr) -> Result<Ipv4Addr> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("cannot make a socket")?;
    // Connecting a datagram socket sends nothing: it only chooses the way.
    socket
        .connect((to, PORT))
        .with_context(|| format!("this machine has no way to {to}"))?;
    match socket.local_addr() {
        Ok(SocketAddr::V4(addr)) => Ok(*addr.ip()),
        _ => bail!("this machine has no way to {to}: say where to be with --listen"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_server_of_lustre_is_not_knocked_at() {
        let lustre = |port| {
            assert_ne!(port, PORT, "it would log that");
            false
        };
        assert_eq!(port_that(lustre), PORT);
        assert_eq!(port_that(|port| port == PORT_UNPRIVILEGED), PORT_UNPRIVILEGED);
        assert_eq!(port_that(|_| true), PORT);
    }

    #[test]
    fn two_processes_on_loopback_get_different_addresses() {
        let net = Net {
            listen: None,
            port: Some(17988),
        };
        let first = for_server(&net, &LnetConfig::default(), &Expected::default()).unwrap();
        let _taken = TcpListener::bind((first.nid.addr(), 17988)).unwrap();
        let second = for_server(&net, &LnetConfig::default(), &Expected::default()).unwrap();
        assert_ne!(first.nid, second.nid);
        assert!(second.nid.addr().is_loopback());
    }

    #[test]
    fn a_taken_port_and_a_foreign_address_are_explained() {
        let _taken = TcpListener::bind(("127.9.9.9", 17989)).unwrap();
        let at = |nid: &str| Net {
            listen: Some(nid.parse().unwrap()),
            port: Some(17989),
        };
        let taken = format!(
            "{:#}",
            for_server(&at("127.9.9.9@tcp"), &LnetConfig::default(), &Expected::default()).unwrap_err()
        );
        assert!(
            taken.contains("127.9.9.9@tcp port 17989") && taken.contains("another process"),
            "{taken}"
        );
        let foreign = format!(
            "{:#}",
            for_server(&at("192.0.2.1@tcp"), &LnetConfig::default(), &Expected::default()).unwrap_err()
        );
        assert!(foreign.contains("no interface"), "{foreign}");
    }

    #[test]
    fn a_client_on_loopback_does_not_take_its_servers_address() {
        let _server = TcpListener::bind(("127.0.0.1", 17990)).unwrap();
        let net = Net {
            listen: None,
            port: Some(17990),
        };
        let client = for_client(&net, &LnetConfig::default(), &["127.0.0.1@tcp".parse().unwrap()]).unwrap();
        assert_ne!(client.nid.addr(), Ipv4Addr::LOCALHOST);
    }
}
