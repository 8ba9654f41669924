//! Decides which nodes may register targets.
//!
//! All targets accept peers at the NIDs of registered targets as servers. The MGS therefore
//! registers a target only if the request comes from the MGS's own node, or from a NID of the
//! target and one of two conditions holds: the target has the MGS's join token, or all of the
//! target's NIDs are of the MGS's host or listed by the administrator (`mgs.MGS.server_nids`).
//!
//! The MGS trusts processes of its host, because LNet accepts connections from this host only from
//! the server's user and from root.

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
    listed: RwLock<NidList>,
    token: Option<JoinToken>,
}

impl Admission {
    /// Rules that admit the nodes in `listed` and the holders of `token`.
    pub(crate) fn new(lnet: Arc<Lnet>, listed: NidList, token: Option<JoinToken>) -> Admission {
        Admission {
            lnet,
            listed: RwLock::new(listed),
            token,
        }
    }

    /// The NIDs listed by the administrator.
    pub(crate) fn listed(&self) -> NidList {
        self.listed.read().clone()
    }

    /// Replaces the NIDs listed by the administrator.
    pub(crate) fn set_listed(&self, list: NidList) {
        *self.listed.write() = list;
    }

    /// Whether a target may have this NID without the join token.
    fn trusts(&self, nid: Nid) -> bool {
        self.lnet.is_local(nid) || self.listed.read().has(nid) || lnet::is_of_this_host(nid.addr())
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
        let list = format!("{} {}", self.listed(), untrusted.join(" "));
        refuse(format!(
            "{} may not register targets: {why}. To allow it, run `nacre lctl set_param 'mgs.MGS.server_nids={}'` here, \
             or copy the file `join-token` from this MGS's directory into the target's",
            req.peer,
            list.trim()
        ))
    }
}
