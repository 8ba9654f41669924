//! Where a process is on the network: its address and the port of its site.
//!
//! NIDs have no port: all nodes of a site use the same one. It is Lustre's 988 where this process may listen on it,
//! otherwise 7988. On loopback every process needs an address of its own, so that several live side by side: the first
//! free one from 127.0.0.1 on.

use crate::{Accept, Lnet, LnetConfig, LnetError, claim, interfaces};
use cpt::CptTable;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use wire::Nid;

/// Lustre's port.
const PORT: u16 = 988;
/// The port of those who may not use Lustre's.
const PORT_UNPRIVILEGED: u16 = 7988;
/// How long an MGS may take to accept a connection that only looks for its port.
const KNOCK: Duration = Duration::from_secs(2);
/// How often a free address is looked for when another process takes the one that was found.
const ATTEMPTS: u32 = 20;

/// Where a process will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its NID.
    pub nid: Nid,
    /// The port of its site.
    pub port: u16,
    /// Whether it accepts connections; a client that may not still makes them.
    pub listen: bool,
}

/// Where a process wants to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// Here and nowhere else.
    pub listen: Option<Nid>,
    /// The port of its site.
    pub port: Option<u16>,
}

impl Wish {
    /// Where a process is that is told its networks: its first NID; it listens if it may. Nothing if it is not told. Fails
    /// where another process has one of the addresses, or this machine has not.
    pub fn on_networks(
        &self,
        cfg: &LnetConfig,
        port: impl FnOnce() -> u16,
    ) -> Result<Option<Place>, LnetError> {
        if cfg.networks.is_empty() {
            return Ok(None);
        }
        let nids: Vec<Nid> = crate::resolve(&cfg.networks)?.iter().map(|ni| ni.nid).collect();
        let port = self.port.unwrap_or_else(port);
        let mut listen = cfg.accept != Accept::None;
        for nid in &nids {
            listen &= may_listen(*nid, port)?;
        }
        let place = |nid: &Nid| Place {
            nid: *nid,
            port,
            listen,
        };
        Ok(nids.first().map(place))
    }

    /// A client's place: on loopback when the MGS is there, otherwise where this machine reaches the MGS from. Fails where another
    /// process has that address: two nodes with one NID take each other's connections.
    pub fn for_client(&self, cfg: &LnetConfig, mgs: &[Nid]) -> Result<Place, LnetError> {
        let first = *mgs.first().ok_or(LnetError::NotTcp { nid: Nid::LO })?;
        // A router uses the port of its site, too.
        let router = cfg.routes.iter().find(|route| route.net == first.net());
        let knock_at = router.map_or(first, |route| route.gateway);
        if let Some(place) = self.on_networks(cfg, || port_of(knock_at.addr()))? {
            return Ok(place);
        }
        let port = match self.port {
            Some(port) => port,
            None => port_of(first.addr()),
        };
        let place = |nid, listen| Place { nid, port, listen };
        if let Some(nid) = self.listen {
            try_listen(nid, port)?;
            return Ok(place(nid, true));
        }
        if first.addr().is_loopback() {
            if cfg.accept == Accept::None {
                return Ok(place(unshared_loopback(), false));
            }
            return match free_loopback(port, mgs) {
                Ok(nid) => Ok(place(nid, true)),
                // A user's client of a site that uses a privileged port: it only makes connections.
                Err(_) if port < 1024 => Ok(place(unshared_loopback(), false)),
                Err(e) => Err(e),
            };
        }
        let nid = Nid::tcp(address_towards(first)?, first.net_number());
        let listen = may_listen(nid, port)? && cfg.accept != Accept::None;
        Ok(place(nid, listen))
    }
}

impl Lnet {
    /// A node at the place that `choose` says, on the networks that `cfg` may name. Between choosing a free address and
    /// taking it somebody else may take it: then it chooses again, if it is free to (`freely`).
    pub async fn start<E: From<LnetError>>(
        cpts: &Arc<CptTable>,
        cfg: &LnetConfig,
        freely: bool,
        choose: impl Fn() -> Result<Place, E>,
    ) -> Result<(Place, Arc<Lnet>), E> {
        let networks = cfg.networks.is_empty();
        let mut attempts_left = if freely && networks { ATTEMPTS } else { 1 };
        loop {
            let place = choose()?;
            let cfg = LnetConfig {
                accept_port: place.port,
                ..cfg.clone()
            };
            let lnet = Lnet::new(cpts.clone(), cfg);
            attempts_left -= 1;
            let added = match networks {
                true => lnet.add_tcp(place.nid, place.listen).await,
                false => Ok(()),
            };
            match added.and_then(|()| lnet.configure(place.listen)) {
                Ok(()) => return Ok((place, lnet)),
                Err(LnetError::AddrInUse { .. }) if attempts_left > 0 => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Checks that this process can listen there now, and that no other process has the address without listening.
pub fn try_listen(nid: Nid, port: u16) -> Result<(), LnetError> {
    let refused = |e: std::io::Error| LnetError::listen(nid, port, &e);
    TcpListener::bind((nid.addr(), port)).map_err(refused)?;
    unclaimed(nid, port, true)
}

/// Whether this process may listen there; an error where it cannot be there at all.
fn may_listen(nid: Nid, port: u16) -> Result<bool, LnetError> {
    match try_listen(nid, port) {
        Ok(()) => Ok(true),
        Err(LnetError::PermissionDenied { .. }) => unclaimed(nid, port, false).map(|()| false),
        Err(e) => Err(e),
    }
}

fn unclaimed(nid: Nid, port: u16, listens: bool) -> Result<(), LnetError> {
    match claim::user_of(nid.addr(), port) {
        Some(by) if claim::excludes(by, port, listens) => Err(LnetError::AddrInUse {
            nid,
            port,
            by: Some(by),
        }),
        _ => Ok(()),
    }
}

/// The addresses of this machine, without loopback, that no process of Nacre's has on this port.
pub fn free_addresses(port: u16) -> Vec<Ipv4Addr> {
    let all = interfaces::all().into_iter().filter(|i| !i.loopback);
    all.map(|i| i.addr)
        .filter(|addr| may_listen(Nid::tcp(*addr, 0), port).is_ok())
        .collect()
}

/// 988 where this process may listen on it.
pub fn own_port() -> u16 {
    match try_listen(Nid::tcp(Ipv4Addr::LOCALHOST, 0), PORT) {
        Err(LnetError::PermissionDenied { .. }) => PORT_UNPRIVILEGED,
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
pub fn free_loopback(port: u16, not: &[Nid]) -> Result<Nid, LnetError> {
    let candidates = (1..=254).map(|last| Nid::tcp(Ipv4Addr::new(127, 0, 0, last), 0));
    let taken = |nid: Nid| not.iter().any(|other| other.addr() == nid.addr());
    for nid in candidates.filter(|nid| !taken(*nid)) {
        match try_listen(nid, port) {
            Err(LnetError::AddrInUse { .. }) => {}
            other => return other.map(|()| nid),
        }
    }
    Err(LnetError::NoLoopback { port })
}

/// A loopback address outside of what listeners use, another one each time: made from the process id and a count.
fn unshared_loopback() -> Nid {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b1);
    let [_, a, b, c] = std::process::id().wrapping_add(n).to_be_bytes();
    Nid::tcp(Ipv4Addr::new(127, a | 0x80, b, c), 0)
}

/// The address from which this machine reaches another.
fn address_towards(to: Nid) -> Result<Ipv4Addr, LnetError> {
    let no_way = |e: std::io::Error| LnetError::NoWay {
        peer: to,
        why: e.to_string(),
    };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(no_way)?;
    // Connecting a datagram socket sends nothing: it only chooses the way.
    socket.connect((to.addr(), PORT)).map_err(no_way)?;
    match socket.local_addr().map_err(no_way)? {
        SocketAddr::V4(addr) => Ok(*addr.ip()),
        SocketAddr::V6(_) => Err(no_way(ErrorKind::AddrNotAvailable.into())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{PORT, PORT_UNPRIVILEGED, Wish, free_loopback, port_that};
    use crate::{Lnet, LnetConfig, LnetError};
    use cpt::CptTable;
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::atomic::{AtomicU32, Ordering};
    use wire::Nid;

    fn wish(port: u16) -> Wish {
        Wish {
            port: Some(port),
            ..Wish::default()
        }
    }

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
    fn a_client_on_loopback_does_not_take_its_servers_address() {
        let _server = TcpListener::bind(("127.0.0.1", 17990)).unwrap();
        let mgs = ["127.0.0.1@tcp".parse().unwrap()];
        let client = wish(17990).for_client(&LnetConfig::default(), &mgs).unwrap();
        assert_ne!(client.nid.addr(), Ipv4Addr::LOCALHOST);
    }

    #[tokio::test]
    async fn an_address_that_somebody_else_takes_in_between_is_looked_for_again() {
        let port = 17991;
        let (other, asked) = (TcpListener::bind(("127.0.0.9", port)).unwrap(), AtomicU32::new(0));
        let place = |nid: &str| super::Place {
            nid: nid.parse().unwrap(),
            port,
            listen: true,
        };
        let choose = || match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(place("127.0.0.9@tcp")),
            _ => free_loopback(port, &[]).map(|nid| super::Place {
                nid,
                ..place("127.0.0.9@tcp")
            }),
        };
        let (cpts, cfg) = (CptTable::single_current(), LnetConfig::default());
        let (at, lnet) = Lnet::start(&cpts, &cfg, true, choose).await.unwrap();
        assert_ne!(at.nid.addr(), other.local_addr().unwrap().ip());
        lnet.shutdown().await;
        let told = || Ok(place("127.0.0.9@tcp"));
        let refused: Result<_, LnetError> = Lnet::start(&cpts, &cfg, false, told).await;
        assert!(matches!(refused, Err(LnetError::AddrInUse { .. })));
    }

    #[tokio::test]
    async fn a_client_does_not_share_an_address_with_one_that_does_not_listen() {
        let (addr, port) = ("127.9.9.7@tcp", 17993);
        let there = || {
            Ok(super::Place {
                nid: addr.parse().unwrap(),
                port,
                listen: false,
            })
        };
        let (cpts, cfg) = (CptTable::single_current(), LnetConfig::default());
        let (_, lnet) = Lnet::start::<LnetError>(&cpts, &cfg, false, there).await.unwrap();
        let told = Wish {
            listen: Some(addr.parse().unwrap()),
            ..wish(port)
        };
        let mgs = ["127.0.0.1@tcp".parse().unwrap()];
        let refused = told.for_client(&cfg, &mgs).unwrap_err();
        let pid = format!("process {}", std::process::id());
        assert!(refused.to_string().contains(&pid), "{refused}");
        let networks = LnetConfig {
            networks: crate::parse_networks("tcp(127.9.9.7)").unwrap(),
            ..LnetConfig::default()
        };
        let refused = wish(port).for_client(&networks, &mgs);
        assert!(matches!(refused, Err(LnetError::AddrInUse { .. })));
        let second = Lnet::start::<LnetError>(&cpts, &cfg, false, there).await;
        assert!(matches!(second, Err(LnetError::AddrInUse { .. })));
        lnet.shutdown().await;
        assert!(told.for_client(&cfg, &mgs).is_ok());
    }

    #[test]
    fn explicit_address_in_use_is_an_error() {
        let _taken = TcpListener::bind(("127.9.9.8", 17992)).unwrap();
        let listen: Option<Nid> = Some("127.9.9.8@tcp".parse().unwrap());
        let mgs = ["127.0.0.1@tcp".parse().unwrap()];
        let refused = Wish {
            listen,
            ..wish(17992)
        }
        .for_client(&LnetConfig::default(), &mgs);
        assert!(matches!(refused, Err(LnetError::AddrInUse { .. })));
    }
}
