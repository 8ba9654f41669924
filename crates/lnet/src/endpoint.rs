//! The local endpoint of a process: its NID and the port of its site.
//!
//! NIDs have no port, so all nodes that connect to each other (a site) use the same port. The
//! default is Lustre's 988 if this process may listen on it, otherwise 7988; a client probes the
//! port of its MGS. On loopback, every process needs an address of its own; a listener gets the
//! first free address from 127.0.0.1 on.

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
/// The port of processes that may not listen on 988.
const PORT_UNPRIVILEGED: u16 = 7988;
/// Time limit of a connection that only probes the port of an MGS or router.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of attempts to start if other processes take the chosen addresses.
const ATTEMPTS: u32 = 20;

/// The local endpoint of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalEndpoint {
    /// The process's NID; the first one if it has several.
    pub nid: Nid,
    /// The port of the site.
    pub port: u16,
    /// Whether the process accepts connections; if not, it only opens them.
    pub listen: bool,
}

/// The administrator's choice of a local endpoint; unset fields are chosen automatically.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointRequest {
    /// The NID to listen on.
    pub listen: Option<Nid>,
    /// The port of the site.
    pub port: Option<u16>,
}

impl EndpointRequest {
    /// The endpoint given by the start parameter `networks`: its first NID. The process listens if
    /// `cfg` and the system permit it on all NIDs. `None` if `networks` is not set. `port` supplies
    /// the port if this request has none.
    ///
    /// # Errors
    ///
    /// An interface does not exist, or another process uses one of the addresses.
    pub fn on_networks(
        &self,
        cfg: &LnetConfig,
        port: impl FnOnce() -> u16,
    ) -> Result<Option<LocalEndpoint>, LnetError> {
        if cfg.networks.is_empty() {
            return Ok(None);
        }
        let nids: Vec<Nid> = crate::resolve(&cfg.networks)?.iter().map(|ni| ni.nid).collect();
        let port = self.port.unwrap_or_else(port);
        let mut listen = cfg.accept != Accept::None;
        for nid in &nids {
            listen &= may_listen(*nid, port)?;
        }
        let endpoint = |nid: &Nid| LocalEndpoint {
            nid: *nid,
            port,
            listen,
        };
        Ok(nids.first().map(endpoint))
    }

    /// A client's endpoint: that of `networks` or `listen` if either is set; otherwise a loopback
    /// address if the MGS has one; otherwise the address from which this machine reaches the MGS.
    ///
    /// # Errors
    ///
    /// `mgs` is empty, this machine has no route to the MGS, or another process uses the address:
    /// two nodes with one NID would take each other's connections.
    pub fn for_client(&self, cfg: &LnetConfig, mgs: &[Nid]) -> Result<LocalEndpoint, LnetError> {
        let first_mgs = *mgs.first().ok_or(LnetError::NotTcp { nid: Nid::LO })?;
        // A router uses the port of the site too, and is nearer than an MGS behind it.
        let router = cfg.routes.iter().find(|route| route.net == first_mgs.net());
        let probe = router.map_or(first_mgs, |route| route.gateway);
        if let Some(endpoint) = self.on_networks(cfg, || probe_port(probe.addr()))? {
            return Ok(endpoint);
        }
        let port = match self.port {
            Some(port) => port,
            None => probe_port(first_mgs.addr()),
        };
        let endpoint = |nid, listen| LocalEndpoint { nid, port, listen };
        if let Some(nid) = self.listen {
            try_listen(nid, port)?;
            return Ok(endpoint(nid, true));
        }
        if first_mgs.addr().is_loopback() {
            if cfg.accept == Accept::None {
                return Ok(endpoint(unshared_loopback(), false));
            }
            return match free_loopback(port, mgs) {
                Ok(nid) => Ok(endpoint(nid, true)),
                // Most likely the client may not listen on the reserved port of its site.
                Err(_) if port < claim::UNPRIVILEGED_PORT_MIN => Ok(endpoint(unshared_loopback(), false)),
                Err(e) => Err(e),
            };
        }
        let nid = Nid::tcp(local_address_towards(first_mgs)?, first_mgs.net_number());
        let listen = may_listen(nid, port)? && cfg.accept != Accept::None;
        Ok(endpoint(nid, listen))
    }
}

impl Lnet {
    /// Starts a node on the port that `choose` returns. The node gets the networks of `cfg` or, if
    /// there are none, the NID that `choose` returns. If another process takes the address of this
    /// NID first and `retry` is set, chooses again, up to 20 times in all.
    ///
    /// # Errors
    ///
    /// An error of `choose`, or the endpoint or a network cannot be set up.
    pub async fn start<E: From<LnetError>>(
        cpts: &Arc<CptTable>,
        cfg: &LnetConfig,
        retry: bool,
        choose: impl Fn() -> Result<LocalEndpoint, E>,
    ) -> Result<(LocalEndpoint, Arc<Lnet>), E> {
        let no_networks = cfg.networks.is_empty();
        let mut attempts_left = if retry && no_networks { ATTEMPTS } else { 1 };
        loop {
            let endpoint = choose()?;
            let cfg = LnetConfig {
                accept_port: endpoint.port,
                ..cfg.clone()
            };
            let lnet = Lnet::new(cpts.clone(), cfg);
            attempts_left -= 1;
            let added = match no_networks {
                true => lnet.add_tcp(endpoint.nid, endpoint.listen).await,
                false => Ok(()),
            };
            match added.and_then(|()| lnet.configure(endpoint.listen)) {
                Ok(()) => return Ok((endpoint, lnet)),
                Err(LnetError::AddrInUse { .. }) if attempts_left > 0 => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// The NID of a server with targets of the MGS at `mgs` (empty: this process runs only an MGS). If
/// this process runs the MGS (`runs_mgs`), the address of `mgs` that this machine has. Otherwise
/// the address from which this machine reaches the MGS; on loopback, or without `mgs`, the first
/// free loopback address.
///
/// # Errors
///
/// This machine has no route to the MGS, another process uses the address, or the address is that
/// of an MGS on this machine that this process does not run.
pub fn server_nid(mgs: &[Nid], port: u16, runs_mgs: bool) -> Result<Nid, LnetError> {
    let own = mgs.iter().find(|nid| interfaces::is_of_this_host(nid.addr()));
    if let Some(nid) = own.filter(|_| runs_mgs) {
        return try_listen(*nid, port).map(|()| *nid);
    }
    let Some(first) = mgs.first().filter(|nid| !nid.addr().is_loopback()) else {
        // Keep the addresses of the MGS free for an MGS that starts later.
        return free_loopback(port, mgs);
    };
    let nid = Nid::tcp(local_address_towards(*first)?, first.net_number());
    if !runs_mgs && mgs.contains(&nid) {
        let by = claim::user_of(nid.addr(), port);
        return Err(LnetError::AddrInUse { nid, port, by });
    }
    try_listen(nid, port).map(|()| nid)
}

/// Whether a process that listens on `nid` can reach `peer`: a process on a loopback address
/// reaches only peers on this machine.
pub fn may_reach(nid: Nid, peer: Nid) -> bool {
    !nid.addr().is_loopback() || interfaces::is_of_this_host(peer.addr())
}

/// Checks that this process can listen on the address now, and that no claim of another process
/// excludes it.
///
/// # Errors
///
/// The address is in use, claimed, or not an address of this machine, or this process may not use
/// the port.
pub fn try_listen(nid: Nid, port: u16) -> Result<(), LnetError> {
    let listen_error = |e: std::io::Error| LnetError::listen(nid, port, &e);
    TcpListener::bind((nid.addr(), port)).map_err(listen_error)?;
    check_unclaimed(nid, port, true)
}

/// Whether this process may listen on the address. Fails if the address is in use, claimed, or not
/// an address of this machine.
fn may_listen(nid: Nid, port: u16) -> Result<bool, LnetError> {
    match try_listen(nid, port) {
        Ok(()) => Ok(true),
        Err(LnetError::PermissionDenied { .. }) => check_unclaimed(nid, port, false).map(|()| false),
        Err(e) => Err(e),
    }
}

fn check_unclaimed(nid: Nid, port: u16, listens: bool) -> Result<(), LnetError> {
    match claim::user_of(nid.addr(), port) {
        Some(user) if claim::excludes(user, port, listens) => Err(LnetError::AddrInUse {
            nid,
            port,
            by: Some(user),
        }),
        _ => Ok(()),
    }
}

/// The addresses of this machine, except loopback, on which this port is neither in use nor claimed
/// by another process.
pub fn free_addresses(port: u16) -> Vec<Ipv4Addr> {
    let all = interfaces::all().into_iter().filter(|i| !i.loopback);
    all.map(|i| i.addr)
        .filter(|addr| may_listen(Nid::tcp(*addr, 0), port).is_ok())
        .collect()
}

/// The port for this process: 988 if it may listen on it, otherwise 7988. The probe listens for a
/// moment, so it uses an address that no server takes.
pub fn default_port() -> u16 {
    match try_listen(unshared_loopback(), PORT) {
        Err(LnetError::PermissionDenied { .. }) => PORT_UNPRIVILEGED,
        _ => PORT,
    }
}

/// The port of the MGS or router at `addr`: 7988 if that port accepts connections and 988 does not,
/// otherwise 988. Port 988 is probed only if 7988 accepts connections, because a Lustre server logs
/// an error for each connection without a hello.
fn probe_port(addr: Ipv4Addr) -> u16 {
    choose_port(|port| TcpStream::connect_timeout(&SocketAddr::from((addr, port)), PROBE_TIMEOUT).is_ok())
}

fn choose_port(accepts: impl Fn(u16) -> bool) -> u16 {
    if accepts(PORT_UNPRIVILEGED) && !accepts(PORT) {
        PORT_UNPRIVILEGED
    } else {
        PORT
    }
}

/// The first address from 127.0.0.1 to 127.0.0.254 that no process uses on this port, except the
/// addresses of `excluded`.
///
/// # Errors
///
/// All are in use, or the system refuses to listen.
pub fn free_loopback(port: u16, excluded: &[Nid]) -> Result<Nid, LnetError> {
    let candidates = (1..=254).map(|last| Nid::tcp(Ipv4Addr::new(127, 0, 0, last), 0));
    let is_excluded = |nid: Nid| excluded.iter().any(|other| other.addr() == nid.addr());
    for nid in candidates.filter(|nid| !is_excluded(*nid)) {
        match try_listen(nid, port) {
            Err(LnetError::AddrInUse { .. }) => {}
            other => return other.map(|()| nid),
        }
    }
    Err(LnetError::NoLoopback { port })
}

/// A loopback address outside of the range of [`free_loopback`]. It is derived from the process id
/// and a counter, so that each call returns another address.
fn unshared_loopback() -> Nid {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b1);
    let [_, a, b, c] = std::process::id().wrapping_add(n).to_be_bytes();
    Nid::tcp(Ipv4Addr::new(127, a | 0x80, b, c), 0)
}

/// The address from which this machine reaches `to`.
fn local_address_towards(to: Nid) -> Result<Ipv4Addr, LnetError> {
    let unreachable = |e: std::io::Error| LnetError::HostUnreachable {
        peer: to,
        why: e.to_string(),
    };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(unreachable)?;
    // Connecting a datagram socket sends nothing; it only selects the route.
    socket.connect((to.addr(), PORT)).map_err(unreachable)?;
    match socket.local_addr().map_err(unreachable)? {
        SocketAddr::V4(addr) => Ok(*addr.ip()),
        SocketAddr::V6(_) => Err(unreachable(ErrorKind::AddrNotAvailable.into())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{EndpointRequest, PORT, PORT_UNPRIVILEGED, choose_port, free_loopback};
    use crate::{Lnet, LnetConfig, LnetError};
    use cpt::CptTable;
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::atomic::{AtomicU32, Ordering};
    use wire::Nid;

    fn request(port: u16) -> EndpointRequest {
        EndpointRequest {
            port: Some(port),
            ..EndpointRequest::default()
        }
    }

    #[test]
    fn port_988_is_not_probed_unless_7988_accepts() {
        let lustre = |port| {
            assert_ne!(port, PORT, "a Lustre server would log an error");
            false
        };
        assert_eq!(choose_port(lustre), PORT);
        assert_eq!(choose_port(|port| port == PORT_UNPRIVILEGED), PORT_UNPRIVILEGED);
        assert_eq!(choose_port(|_| true), PORT);
    }

    #[test]
    fn a_client_on_loopback_does_not_take_its_servers_address() {
        let _server = TcpListener::bind(("127.0.0.1", 17990)).unwrap();
        let mgs = ["127.0.0.1@tcp".parse().unwrap()];
        let client = request(17990).for_client(&LnetConfig::default(), &mgs).unwrap();
        assert_ne!(client.nid.addr(), Ipv4Addr::LOCALHOST);
    }

    #[test]
    fn server_listens_on_the_address_from_which_it_reaches_its_mgs() {
        let mgs = |text: &str| [text.parse::<Nid>().unwrap()];
        let port = 17993;
        let free = super::server_nid(&[], port, true).unwrap();
        assert!(free.addr().is_loopback());
        let beside = super::server_nid(&[free], port, false).unwrap();
        assert!(beside.addr().is_loopback() && beside != free, "kept for the MGS");
        assert_eq!(super::server_nid(&[free], port, true).unwrap(), free);
        let Some(own) = crate::interfaces::all().into_iter().find(|i| !i.loopback) else {
            return;
        };
        let own = Nid::tcp(own.addr, 0);
        assert_eq!(super::server_nid(&[own], port, true).unwrap(), own);
        let taken = super::server_nid(&[own], port, false).unwrap_err();
        assert!(
            matches!(taken, LnetError::AddrInUse { nid, .. } if nid == own),
            "{taken}"
        );
        let loopback = Nid::tcp(Ipv4Addr::LOCALHOST, 0);
        assert!(super::may_reach(loopback, own) && super::may_reach(own, mgs("192.0.2.1@tcp")[0]));
        assert!(!super::may_reach(loopback, mgs("192.0.2.1@tcp")[0]));
    }

    #[tokio::test]
    async fn start_chooses_again_if_the_address_was_taken() {
        let port = 17991;
        let (listener, calls) = (TcpListener::bind(("127.0.0.9", port)).unwrap(), AtomicU32::new(0));
        let endpoint = |nid: &str| super::LocalEndpoint {
            nid: nid.parse().unwrap(),
            port,
            listen: true,
        };
        let choose = || match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(endpoint("127.0.0.9@tcp")),
            _ => free_loopback(port, &[]).map(|nid| super::LocalEndpoint {
                nid,
                ..endpoint("127.0.0.9@tcp")
            }),
        };
        let (cpts, cfg) = (CptTable::single_current(), LnetConfig::default());
        let (started, lnet) = Lnet::start(&cpts, &cfg, true, choose).await.unwrap();
        assert_ne!(started.nid.addr(), listener.local_addr().unwrap().ip());
        lnet.shutdown().await;
        let fixed = || Ok(endpoint("127.0.0.9@tcp"));
        let without_retry: Result<_, LnetError> = Lnet::start(&cpts, &cfg, false, fixed).await;
        assert!(matches!(without_retry, Err(LnetError::AddrInUse { .. })));
    }

    #[tokio::test]
    async fn a_client_does_not_share_an_address_with_one_that_does_not_listen() {
        let (addr, port) = ("127.9.9.7@tcp", 17993);
        let without_listener = || {
            Ok(super::LocalEndpoint {
                nid: addr.parse().unwrap(),
                port,
                listen: false,
            })
        };
        let (cpts, cfg) = (CptTable::single_current(), LnetConfig::default());
        let (_, lnet) = Lnet::start::<LnetError>(&cpts, &cfg, false, without_listener)
            .await
            .unwrap();
        let explicit = EndpointRequest {
            listen: Some(addr.parse().unwrap()),
            ..request(port)
        };
        let mgs = ["127.0.0.1@tcp".parse().unwrap()];
        let error = explicit.for_client(&cfg, &mgs).unwrap_err();
        let pid = format!("process {}", std::process::id());
        assert!(error.to_string().contains(&pid), "{error}");
        let networks = LnetConfig {
            networks: crate::parse_networks("tcp(127.9.9.7)").unwrap(),
            ..LnetConfig::default()
        };
        let on_network = request(port).for_client(&networks, &mgs);
        assert!(matches!(on_network, Err(LnetError::AddrInUse { .. })));
        let second = Lnet::start::<LnetError>(&cpts, &cfg, false, without_listener).await;
        assert!(matches!(second, Err(LnetError::AddrInUse { .. })));
        lnet.shutdown().await;
        assert!(explicit.for_client(&cfg, &mgs).is_ok());
    }

    #[test]
    fn explicit_address_in_use_is_an_error() {
        let _taken = TcpListener::bind(("127.9.9.8", 17992)).unwrap();
        let listen: Option<Nid> = Some("127.9.9.8@tcp".parse().unwrap());
        let mgs = ["127.0.0.1@tcp".parse().unwrap()];
        let result = EndpointRequest {
            listen,
            ..request(17992)
        }
        .for_client(&LnetConfig::default(), &mgs);
        assert!(matches!(result, Err(LnetError::AddrInUse { .. })));
    }
}
