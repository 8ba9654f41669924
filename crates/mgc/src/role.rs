//! The role of a connecting peer: a client, or a server of the same file system.
//!
//! A peer that claims to be a server must be at the NID of a registered target (for a connection to
//! an OST: of an MDT), or in the same process. The configuration lists the NIDs of all targets, and
//! the MGS registers targets only from nodes that the administrator trusts.

use lnet::warn_rate_limited;
use rpc::{ConnectRequest, Role};
use wire::{Errno, Nid};

use crate::{FsConfig, TargetConf};

impl FsConfig {
    /// Whether an MDT of the file system is at this NID.
    pub fn has_mdt_at(&self, nid: Nid) -> bool {
        any_at(&self.mdts, nid)
    }

    /// Whether any target of the file system is at this NID.
    pub fn has_target_at(&self, nid: Nid) -> bool {
        self.has_mdt_at(nid) || any_at(&self.osts, nid)
    }
}

fn any_at(targets: &[TargetConf], nid: Nid) -> bool {
    targets.iter().any(|t| t.nids.contains(&nid))
}

/// The role of a peer that connects to the target with the UUID `target`. `is_registered` returns
/// whether the configuration lists a target at a NID that may connect to this target as a server.
/// An OST accepts only MDTs as servers, an MDT accepts all targets.
///
/// # Errors
///
/// `EAGAIN` if the peer claims to be a server and is not registered: it may have registered just
/// now, and the target has not read the new configuration yet.
pub fn role_of(
    target: &str,
    req: &ConnectRequest,
    is_registered: impl FnOnce(Nid) -> bool,
) -> Result<Role, Errno> {
    if !req.claims_server() {
        return Ok(Role::Client);
    }
    // 0@lo is this process itself.
    if req.peer == Nid::LO || is_registered(req.peer) {
        return Ok(Role::Server);
    }
    warn_rate_limited!(
        target_uuid = target, peer = %req.peer, client = %req.client_uuid,
        "connect as a server refused: no server that may connect here is registered at the peer's NID"
    );
    Err(Errno::EAGAIN)
}

/// The index of the MDT of a file system that connects to another target with this UUID, such as
/// `testfs-MDT0001-mdtlov_UUID`. The UUID gives no rights: the caller has checked that the peer is
/// a server ([`role_of`]).
pub fn mdt_index_of(fsname: &str, client_uuid: &str) -> Option<u32> {
    let rest = client_uuid.strip_prefix(fsname)?.strip_prefix("-MDT")?;
    u32::from_str_radix(rest.strip_suffix("-mdtlov_UUID")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{OBD_CONNECT_LIGHTWEIGHT, OBD_CONNECT_MDS, OBD_CONNECT_MDS_MDS, ObdConnectData};

    fn nid(text: &str) -> Nid {
        text.parse().expect("a NID")
    }

    /// The role of a peer at `peer` that connects with these flags. The file system has an MDT at
    /// 10.0.0.1@tcp and an OST at 10.0.0.2@tcp.
    fn role(peer: &str, flags: u64) -> Result<Role, Errno> {
        let target_at = |text| TargetConf {
            nids: vec![nid(text)],
            ..TargetConf::default()
        };
        let config = FsConfig {
            mdts: vec![target_at("10.0.0.1@tcp")],
            osts: vec![target_at("10.0.0.2@tcp")],
            ..FsConfig::default()
        };
        assert!(config.has_target_at(nid("10.0.0.2@tcp")));
        let data = ObdConnectData {
            ocd_connect_flags: flags,
            ..ObdConnectData::default()
        };
        let req = ConnectRequest {
            // A server's name gives no rights.
            client_uuid: "fs-MDT0000-mdtlov_UUID".into(),
            peer: nid(peer),
            reconnects: false,
            recovers: false,
            data,
        };
        role_of("fs-OST0000_UUID", &req, |nid| config.has_mdt_at(nid))
    }

    #[test]
    fn a_peer_that_claims_to_be_a_server_needs_a_registered_nid_or_loopback() {
        for claim in [OBD_CONNECT_MDS, OBD_CONNECT_LIGHTWEIGHT, OBD_CONNECT_MDS_MDS] {
            assert_eq!(role("10.0.0.1@tcp", claim), Ok(Role::Server));
            assert_eq!(role("0@lo", claim), Ok(Role::Server));
            for other in ["10.0.0.2@tcp", "10.0.0.3@tcp", "10.0.0.1@tcp1"] {
                assert_eq!(role(other, claim), Err(Errno::EAGAIN), "{other}");
            }
        }
    }

    #[test]
    fn an_mdts_uuid_names_its_index() {
        let index = |uuid| mdt_index_of("fs", uuid);
        assert_eq!(index("fs-MDT0000-mdtlov_UUID"), Some(0));
        assert_eq!(index("fs-MDT001a-mdtlov_UUID"), Some(26));
        for other in [
            "fs-MDT0001-lwp-OST0000_UUID",
            "of-MDT0001-mdtlov_UUID",
            "fs-OST0001-mdtlov_UUID",
            "fs-MDT-mdtlov_UUID",
            "9b3ee1a4-7a5e-4c5b-8a7e-0d2c1b3f4e5d",
        ] {
            assert_eq!(index(other), None, "{other}");
        }
    }

    #[test]
    fn a_peer_that_does_not_claim_to_be_a_server_is_a_client() {
        for peer in ["10.0.0.1@tcp", "0@lo", "10.0.0.3@tcp"] {
            assert_eq!(role(peer, 0), Ok(Role::Client));
        }
    }
}
