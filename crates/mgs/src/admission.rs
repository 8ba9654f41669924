//! Decides which nodes may register targets.
//!
//! All targets accept peers at the NIDs of registered targets as servers. The MGS therefore checks
//! each registration. It accepts every request from its own node. A request from another node must
//! come from a NID of the target, and meet one of two conditions:
//!
//! - The target has the MGS's join token.
//! - Each NID of the target belongs to the MGS's host, or the administrator listed it
//!   (`mgs.MGS.server_nids`).
//!
//! The MGS trusts the processes of its host, because LNet accepts connections from this host only
//! from the server's user and from root.

use std::sync::Arc;

use lnet::Lnet;
use mgc::{JoinToken, registration};
use parking_lot::RwLock;
use rpc::ServerRequest;
use wire::format::bufs;
use wire::{Errno, Nid, NidList};

use crate::MgsError;
use crate::fsdb::Target;

/// The admission rules.
pub(crate) struct Admission {
    lnet: Arc<Lnet>,
    listed_nids: RwLock<NidList>,
    token: Option<JoinToken>,
}

impl Admission {
    /// Rules that admit targets at `listed_nids` and targets with `token`.
    pub(crate) fn new(lnet: Arc<Lnet>, listed_nids: NidList, token: Option<JoinToken>) -> Admission {
        Admission {
            lnet,
            listed_nids: RwLock::new(listed_nids),
            token,
        }
    }

    /// The NIDs that the administrator listed.
    pub(crate) fn listed_nids(&self) -> NidList {
        self.listed_nids.read().clone()
    }

    /// Replaces the NIDs that the administrator listed.
    pub(crate) fn set_listed_nids(&self, list: NidList) {
        *self.listed_nids.write() = list;
    }

    /// Whether a target may have this NID without the join token.
    fn trusts(&self, nid: Nid) -> bool {
        self.lnet.is_local(nid) || self.listed_nids.read().has(nid) || lnet::is_of_this_host(nid.addr())
    }

    /// Checks that the sender of the request may register this target. `store` is the UUID of the
    /// target's store.
    pub(crate) fn check(
        &self,
        req: &ServerRequest,
        target: &Target,
        store: Option<&str>,
    ) -> Result<(), MgsError> {
        let refuse = |why: String| {
            Err(MgsError::Refused {
                svname: target.name(),
                why,
                errno: Errno::EACCES,
            })
        };
        if self.lnet.is_local(req.peer) {
            return Ok(());
        }
        if !target.nids().contains(&req.peer) {
            return refuse(format!(
                "it comes from {}, which is not among its NIDs: a target registers from its own node",
                req.peer
            ));
        }
        let proof = registration::proof(req);
        if let Some(token) = &self.token
            && !proof.is_empty()
            && token.verify(req.export.handle, req.buf(bufs::MGS_TARGET_INFO), store, proof)
        {
            return Ok(());
        }
        let nids = target.nodes.iter().flatten();
        let untrusted: Vec<String> = nids
            .filter(|nid| !self.trusts(**nid))
            .map(Nid::to_string)
            .collect();
        if untrusted.is_empty() {
            return Ok(());
        }
        let why = if proof.is_empty() {
            "it has no join token, and not all of its NIDs are in mgs.MGS.server_nids"
        } else {
            "its join token is not the token of this MGS"
        };
        let list = format!("{} {}", self.listed_nids(), untrusted.join(" "));
        refuse(format!(
            "{} may not register targets: {why}. To allow it, run `nacre lctl set_param 'mgs.MGS.server_nids={}'` here, \
             or copy the file `join-token` from this MGS's directory into the target's",
            req.peer,
            list.trim()
        ))
    }
}
