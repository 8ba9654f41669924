//! The choice of the local port for connecting. Acceptors with Lustre's default `accept=secure`
//! refuse connections of other hosts from unreserved ports. So this node uses a reserved port (1023
//! down to 512) if it may and one is free. Otherwise it uses any port, and reaches only its own
//! host and hosts with `accept=all`.

use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::net::{TcpSocket, TcpStream};
use wire::{LNET_ACCEPTOR_MAX_RESERVED_PORT, LNET_ACCEPTOR_MIN_RESERVED_PORT};

/// The choice among the reserved ports.
#[derive(Debug, Default)]
pub(super) struct Ports {
    /// Number of ports chosen so far.
    chosen: AtomicU32,
    /// Whether this process may not use reserved ports.
    forbidden: AtomicBool,
}

/// Number of reserved ports to choose from.
const RESERVED_PORTS: u32 = LNET_ACCEPTOR_MAX_RESERVED_PORT - LNET_ACCEPTOR_MIN_RESERVED_PORT + 1;

impl Ports {
    /// The next reserved port in descending order, wrapping around; never the acceptor's port.
    fn next(&self, acceptor: u16) -> u16 {
        loop {
            let n = self.chosen.fetch_add(1, Ordering::Relaxed) % RESERVED_PORTS;
            let port = (LNET_ACCEPTOR_MAX_RESERVED_PORT - n) as u16;
            if port != acceptor {
                return port;
            }
        }
    }
}

/// Connects from `local` to `to`, on a reserved port if one is free and this process may use it.
pub(super) async fn connect(local: Ipv4Addr, to: SocketAddr, ports: &Ports) -> Result<TcpStream> {
    for _ in 0..RESERVED_PORTS {
        if ports.forbidden.load(Ordering::Relaxed) {
            break;
        }
        let socket = match bind(local, ports.next(to.port())) {
            Ok(socket) => socket,
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                ports.forbidden.store(true, Ordering::Relaxed);
                continue;
            }
            Err(e) if is_port_taken(&e) => continue,
            Err(e) => return Err(e),
        };
        match socket.connect(to).await {
            Err(e) if is_port_taken(&e) => {}
            done => return done,
        }
    }
    let connected = match bind(local, 0) {
        Ok(socket) => socket.connect(to).await,
        Err(e) => Err(e),
    };
    match connected {
        Err(e) if e.kind() == ErrorKind::AddrNotAvailable => Err(Error::new(
            e.kind(),
            format!("cannot connect from {local}: is it an address of this machine?"),
        )),
        done => done,
    }
}

fn is_port_taken(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable)
}

fn bind(local: Ipv4Addr, port: u16) -> Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((local, port)))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::Ports;

    #[test]
    fn reserved_ports_are_used_in_turn_except_the_acceptors_port() {
        let ports = Ports::default();
        let first: Vec<u16> = (0..3).map(|_| ports.next(1022)).collect();
        assert_eq!(first, [1023, 1021, 1020]);
        assert!(
            (0..2000)
                .map(|_| ports.next(988))
                .all(|p| (512..1024).contains(&p) && p != 988)
        );
    }
}
