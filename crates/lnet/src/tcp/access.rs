//! Access control for connections, decided before any byte is read.
//!
//! For a connection from this host, the kernel tells which user created its socket: only root and
//! the user of this process may connect. The source port proves less, because a user namespace or
//! `net.ipv4.ip_unprivileged_port_start` gives every user the reserved ports. For a connection from
//! another host, only the source port is known: on a trusted host, only root can use the reserved
//! ones (`accept=secure`).

use super::diag::Diag;
use super::route::is_local_address;
use crate::Accept;
use crate::claim::UNPRIVILEGED_PORT_MIN;
use crate::servers_user::{UNMAPPED_UID, servers_user};
use rustix::process::geteuid;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;
use std::sync::Once;
use tokio::net::TcpStream;

/// The user id of root.
const ROOT: u32 = 0;

/// The origin of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A socket of this user on this host, in this network namespace.
    ThisHost { uid: u32 },
    /// Another host, or another network namespace.
    OtherHost,
}

/// Decides whether the acceptor admits a connection.
///
/// Returns the host address under which the acceptor counts the connection: 127.0.0.1 for all
/// connections from this host.
///
/// # Errors
/// The reason for the refusal.
pub(super) fn admit(stream: &TcpStream, accept: Accept) -> Result<Ipv4Addr, String> {
    let (own, peer) = local_and_peer_addr(stream)?;
    let origin = origin(stream, own, peer)?;
    check_origin(origin, geteuid().as_raw(), own.port(), peer.port(), accept)?;
    Ok(match origin {
        Origin::ThisHost { .. } => Ipv4Addr::LOCALHOST,
        Origin::OtherHost => *peer.ip(),
    })
}

/// Checks that this process can trust the server of a connection that it opened: another user's
/// process on this host could listen at the address of a stopped server.
///
/// # Errors
/// The reason not to trust the server.
pub(super) fn check_server(stream: &TcpStream) -> Result<(), String> {
    let (own, peer) = local_and_peer_addr(stream)?;
    let may_serve = |uid| may_serve(uid, geteuid().as_raw(), peer.port(), servers_user());
    match origin(stream, own, peer)? {
        Origin::OtherHost => Ok(()),
        Origin::ThisHost { uid } if may_serve(uid) => Ok(()),
        Origin::ThisHost { uid } => Err(format!(
            "the listening process belongs to user {uid}; on this host only root and user {} are trusted",
            geteuid().as_raw()
        )),
    }
}

/// Whether a process of user `own_uid` may use a server of user `uid` on `port`. Root may use the
/// servers of the user to which root has given this task ([`servers_user`]), and those of any user
/// on an unreserved port: root chose that port knowing that any user may listen on it.
fn may_serve(uid: u32, own_uid: u32, port: u16, servers_user: Option<u32>) -> bool {
    let root_may = || port >= UNPRIVILEGED_PORT_MIN || servers_user == Some(uid);
    uid == ROOT || uid == own_uid || own_uid == ROOT && root_may()
}

/// Checks a connection from port `from_port` of `origin` to port `own_port` of this process, which
/// runs as user `own_uid`.
fn check_origin(
    origin: Origin,
    own_uid: u32,
    own_port: u16,
    from_port: u16,
    accept: Accept,
) -> Result<(), String> {
    if let Origin::ThisHost { uid } = origin
        && uid != ROOT
        && uid != own_uid
    {
        return Err(format!(
            "its socket belongs to user {uid}; from this host only root and user {own_uid} may connect"
        ));
    }
    let owner_suffices = matches!(origin, Origin::ThisHost { .. }) && own_port >= UNPRIVILEGED_PORT_MIN;
    if accept == Accept::Secure && from_port >= UNPRIVILEGED_PORT_MIN && !owner_suffices {
        return Err(format!(
            "its source port is {from_port}; only ports below {UNPRIVILEGED_PORT_MIN} are accepted (start parameter accept=secure)"
        ));
    }
    Ok(())
}

/// The likely reason why the acceptor at `to` closed a connection from `own` without an answer;
/// `None` if no reason is likely.
pub(super) fn why_refused(own: SocketAddr, to: SocketAddrV4) -> Option<String> {
    let own_uid = geteuid().as_raw();
    let in_namespace = in_user_namespace();
    if let Ok(Some(listener)) = Diag::open().and_then(|mut diag| diag.find_listener(to))
        && listener.uid != own_uid
        && (own_uid != ROOT || in_namespace)
    {
        let owner = match in_namespace && listener.uid == UNMAPPED_UID {
            true => "a user outside of this user namespace".to_owned(),
            false => format!("user {}", listener.uid),
        };
        return Some(format!(
            "it belongs to {owner} and accepts connections from this host only if root or that user makes them; this process runs as \
             user {own_uid}"
        ));
    }
    (own.port() >= UNPRIVILEGED_PORT_MIN).then(|| {
        format!(
            "it may accept only ports below {UNPRIVILEGED_PORT_MIN}: run this process as root, or start the peer with accept=all"
        )
    })
}

/// Logs, at the start of an acceptor, the checks that do not work on this host; each only once.
pub(super) fn log_missing_checks(acceptor: SocketAddrV4, accept: Accept) {
    static PORTS: Once = Once::new();
    static OWNERS: Once = Once::new();
    // The acceptor's own socket exists: a kernel that does not report it reports no sockets at all.
    match Diag::open().and_then(|mut diag| diag.find_listener(acceptor)) {
        Ok(Some(_)) => {}
        found => OWNERS.call_once(|| {
            let why = found.map_or_else(|e| e.to_string(), |_| "it reports no sockets".to_owned());
            tracing::error!(
                "the kernel does not report the owners of TCP sockets ({why}): connections from this host are refused; load the \
                 module tcp_diag"
            );
        }),
    }
    if accept == Accept::Secure
        && acceptor.port() < UNPRIVILEGED_PORT_MIN
        && first_unprivileged_port() < UNPRIVILEGED_PORT_MIN
    {
        PORTS.call_once(|| {
            tracing::warn!(
                "net.ipv4.ip_unprivileged_port_start lets every user of this host use ports below {UNPRIVILEGED_PORT_MIN}: a source \
                 port proves nothing, so only the owner of a connection's socket is checked"
            );
        });
    }
}

fn first_unprivileged_port() -> u16 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(UNPRIVILEGED_PORT_MIN)
}

/// Whether this process is in a user namespace that does not map all users of the host to
/// themselves.
fn in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    !map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// The local and the remote address of a connection.
fn local_and_peer_addr(stream: &TcpStream) -> Result<(SocketAddrV4, SocketAddrV4), String> {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(SocketAddr::V4(own)), Ok(SocketAddr::V4(peer))) => Ok((own, peer)),
        (Err(e), _) | (_, Err(e)) => Err(e.to_string()),
        _ => Err("it is not an IPv4 connection".to_owned()),
    }
}

/// Queries the kernel for the origin of `stream`: the owner of the socket at its other end.
fn origin(stream: impl AsFd, own: SocketAddrV4, peer: SocketAddrV4) -> Result<Origin, String> {
    let query_error = |e: io::Error| format!("the kernel does not report the owner of its socket: {e}");
    let mut diag = Diag::open().map_err(query_error)?;
    let Some(peer_socket) = diag.find_connection(peer, own).map_err(query_error)? else {
        if is_local_address(*peer.ip()).map_err(query_error)? {
            return Err(
                "it comes from this host, but the kernel finds no such socket: it is closed, or bound to an \
                        interface"
                    .to_owned(),
            );
        }
        return Ok(Origin::OtherHost);
    };
    // The peer may have closed its socket, and another process may have reused the address and
    // port. No other process can have them while this end is connected: only one connection can
    // have these two ends.
    let inode = rustix::fs::fstat(stream)
        .map_err(|e| query_error(e.into()))?
        .st_ino as u32;
    let own_socket = diag.find_connection(own, peer).map_err(query_error)?;
    let is_own_connected =
        own_socket.is_some_and(|own_socket| own_socket.is_connected() && own_socket.inode == inode);
    if !peer_socket.is_connected() || !is_own_connected {
        return Err("it has closed the connection".to_owned());
    }
    if peer_socket.uid == UNMAPPED_UID && in_user_namespace() {
        return Err("its socket belongs to a user outside of this process's user namespace".to_owned());
    }
    Ok(Origin::ThisHost { uid: peer_socket.uid })
}

#[cfg(test)]
mod tests {
    use super::{Origin, check_origin, may_serve};
    use crate::Accept;

    const USER: u32 = 1000;

    fn is_admitted(uid: Option<u32>, own_uid: u32, own_port: u16, from_port: u16, accept: Accept) -> bool {
        let origin = uid.map_or(Origin::OtherHost, |uid| Origin::ThisHost { uid });
        check_origin(origin, own_uid, own_port, from_port, accept).is_ok()
    }

    #[test]
    fn only_root_and_the_own_user_may_connect_from_this_host() {
        for accept in [Accept::Secure, Accept::All] {
            for (own, port) in [(0, 988), (USER, 7988)] {
                assert!(is_admitted(Some(0), own, port, 1023, accept));
                assert!(is_admitted(Some(own), own, port, 1023, accept));
                assert!(!is_admitted(Some(1001), own, port, 1023, accept));
                assert!(!is_admitted(Some(65534), own, port, 40000, accept));
            }
        }
        assert!(is_admitted(Some(USER), USER, 7988, 40000, Accept::Secure));
        assert!(!is_admitted(Some(USER), 0, 7988, 40000, Accept::Secure));
    }

    #[test]
    fn a_secure_acceptor_takes_other_hosts_only_from_reserved_ports() {
        for port in [988, 7988] {
            assert!(is_admitted(None, 0, port, 1023, Accept::Secure));
            assert!(!is_admitted(None, 0, port, 1024, Accept::Secure));
            assert!(is_admitted(None, 0, port, 1024, Accept::All));
        }
        assert!(!is_admitted(Some(0), 0, 988, 1024, Accept::Secure));
        assert!(is_admitted(Some(0), 0, 988, 1024, Accept::All));
    }

    #[test]
    fn root_trusts_servers_of_other_users_on_unreserved_ports_only() {
        let may_serve_alone = |uid, own_uid, port| may_serve(uid, own_uid, port, None);
        assert!(may_serve_alone(0, USER, 988) && may_serve_alone(USER, USER, 7988));
        assert!(may_serve_alone(USER, 0, 7988) && !may_serve_alone(USER, 0, 988));
        assert!(!may_serve_alone(1001, USER, 7988));
    }

    #[test]
    fn root_uses_servers_of_the_user_that_runs_servers() {
        assert!(may_serve(101, 0, 988, Some(101)));
        assert!(!may_serve(USER, 0, 988, Some(101)));
        assert!(
            !may_serve(101, USER, 988, Some(101)),
            "only root trusts that user"
        );
    }
}
