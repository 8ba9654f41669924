//! Chooses the address of a process on the network ([`lnet::endpoint`]) from the command line and
//! the start parameters; adds advice to errors.

use anyhow::{Result, anyhow, bail};
pub(crate) use lnet::endpoint::LocalEndpoint;
use lnet::endpoint::{self, EndpointRequest};
use lnet::{AddressUser, LnetConfig, LnetError};
use wire::Nid;

use crate::cli::Net;

impl Net {
    fn endpoint_request(&self) -> EndpointRequest {
        EndpointRequest {
            listen: self.listen,
            port: self.port,
        }
    }

    fn check_conflict(&self, lnet: &LnetConfig) -> Result<()> {
        if self.listen.is_some() && !lnet.networks.is_empty() {
            bail!("--listen and networks= both set the address: use only one of them");
        }
        Ok(())
    }
}

/// Preferences for a server's address, if the command line sets none.
#[derive(Debug, Clone, Default)]
pub(crate) struct AddressPreference {
    /// One of these addresses only, in order of preference; empty: any address.
    pub(crate) required: Vec<Nid>,
    /// This address if it is free.
    pub(crate) preferred: Option<Nid>,
    /// NIDs of the MGS of the targets; the server must be able to reach the MGS.
    pub(crate) mgs: Vec<Nid>,
    /// Whether the process runs an MGS.
    pub(crate) runs_mgs: bool,
}

/// Chooses the address of a server, which must listen.
pub(crate) fn server_endpoint(
    net: &Net,
    lnet: &LnetConfig,
    preference: &AddressPreference,
) -> Result<LocalEndpoint> {
    net.check_conflict(lnet)?;
    if let Some(endpoint) = net.endpoint_request().on_networks(lnet, endpoint::default_port)? {
        // If the address is in use, LNet reports it when it begins to listen.
        return Ok(LocalEndpoint {
            listen: true,
            ..endpoint
        });
    }
    let port = net.port.unwrap_or_else(endpoint::default_port);
    let listen = |nid: Nid| endpoint::try_listen(nid, port).map(|()| nid);
    let nid = match (net.listen, &preference.required[..]) {
        (Some(nid), _) => listen(nid),
        (None, [first, others @ ..]) => {
            let first = listen(*first);
            others
                .iter()
                .fold(first, |found, nid| found.or_else(|e| listen(*nid).map_err(|_| e)))
        }
        (None, []) => match preference.preferred {
            Some(nid) if endpoint::try_listen(nid, port).is_ok() => Ok(nid),
            _ => endpoint::server_nid(&preference.mgs, port, preference.runs_mgs),
        },
    };
    let nid = nid.map_err(advise)?;
    check_reaches(nid, &preference.mgs)?;
    Ok(LocalEndpoint {
        nid,
        port,
        listen: true,
    })
}

/// Fails if a server on `nid` cannot reach its MGS.
fn check_reaches(nid: Nid, mgs: &[Nid]) -> Result<()> {
    let Some(first) = mgs.first() else { return Ok(()) };
    if mgs.iter().any(|mgs| endpoint::may_reach(nid, *mgs)) {
        return Ok(());
    }
    bail!(
        "cannot listen on {nid}: the MGS of these targets is at {first}, which a loopback address does not reach: omit --listen, or name this host's address in the network of the MGS"
    )
}

/// Chooses the address of a client.
pub(crate) fn client_endpoint(net: &Net, lnet: &LnetConfig, mgs: &[Nid]) -> Result<LocalEndpoint> {
    net.check_conflict(lnet)?;
    net.endpoint_request().for_client(lnet, mgs).map_err(advise)
}

/// An address that another process uses.
pub(crate) struct AddressInUse {
    pub(crate) nid: Nid,
    pub(crate) port: u16,
    /// The process that uses the address, if it is a Nacre process.
    pub(crate) user: Option<AddressUser>,
}

/// The address that a client would use, if another process uses it; `None` if it is free.
pub(crate) fn client_address_in_use(
    net: &Net,
    lnet: &LnetConfig,
    mgs: &[Nid],
) -> Result<Option<AddressInUse>> {
    net.check_conflict(lnet)?;
    match net.endpoint_request().for_client(lnet, mgs) {
        Ok(_) => Ok(None),
        Err(LnetError::AddrInUse { nid, port, by }) => Ok(Some(AddressInUse { nid, port, user: by })),
        Err(e) => Err(advise(e)),
    }
}

/// Adds advice to an error about the address.
fn advise(error: LnetError) -> anyhow::Error {
    let (address, advice) = match &error {
        LnetError::AddrInUse { nid, port, by } => {
            let reason = by.map_or("another process listens there".to_owned(), |user| {
                format!("that is the address of {user}")
            });
            return anyhow!(
                "cannot listen on {nid} port {port} ({reason}: stop it, or choose another --listen or --port)"
            );
        }
        LnetError::PermissionDenied { nid, port } => (
            format!("{nid} port {port}"),
            "ports below 1024 are for root: choose --port 7988 for all nodes, or give the binary CAP_NET_BIND_SERVICE",
        ),
        LnetError::AddrNotAvailable { nid } => (
            nid.to_string(),
            "no interface of this machine has that address: choose another --listen",
        ),
        LnetError::NoLoopback { .. } | LnetError::HostUnreachable { .. } => {
            return anyhow!("{error} (--listen, --port)");
        }
        _ => return error.into(),
    };
    anyhow!("cannot listen on {address} ({advice})")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn two_processes_on_loopback_get_different_addresses() {
        let net = Net {
            listen: None,
            port: Some(17988),
        };
        let first = server_endpoint(&net, &LnetConfig::default(), &AddressPreference::default()).unwrap();
        let _listener = TcpListener::bind((first.nid.addr(), 17988)).unwrap();
        let second = server_endpoint(&net, &LnetConfig::default(), &AddressPreference::default()).unwrap();
        assert_ne!(first.nid, second.nid);
        assert!(second.nid.addr().is_loopback());
    }

    #[test]
    fn server_on_loopback_with_a_distant_mgs_is_refused() {
        let listen = Net {
            listen: Some("127.9.9.8@tcp".parse().unwrap()),
            port: Some(17992),
        };
        let preference = AddressPreference {
            mgs: vec!["192.0.2.1@tcp".parse().unwrap()],
            ..AddressPreference::default()
        };
        let error = server_endpoint(&listen, &LnetConfig::default(), &preference).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("127.9.9.8@tcp") && error.contains("192.0.2.1@tcp"),
            "{error}"
        );
    }

    #[test]
    fn port_in_use_and_foreign_address_are_explained() {
        let _listener = TcpListener::bind(("127.9.9.9", 17989)).unwrap();
        let listen_on = |nid: &str| Net {
            listen: Some(nid.parse().unwrap()),
            port: Some(17989),
        };
        let in_use = format!(
            "{:#}",
            server_endpoint(
                &listen_on("127.9.9.9@tcp"),
                &LnetConfig::default(),
                &AddressPreference::default()
            )
            .unwrap_err()
        );
        assert!(
            in_use.contains("127.9.9.9@tcp port 17989") && in_use.contains("another process"),
            "{in_use}"
        );
        let foreign = format!(
            "{:#}",
            server_endpoint(
                &listen_on("192.0.2.1@tcp"),
                &LnetConfig::default(),
                &AddressPreference::default()
            )
            .unwrap_err()
        );
        assert!(foreign.contains("no interface"), "{foreign}");
    }
}
