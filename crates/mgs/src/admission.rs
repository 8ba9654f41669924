//! Which nodes may register targets.
//!
//! All targets take the NIDs of a registered target for those of a server. So the MGS registers only targets that are on
//! its own host, at NIDs that the administrator has listed (`mgs.MGS.server_nids`), or that have its join token.
//!
//! Processes of this host are trusted because LNet takes connections from this host only of the user that runs the server
//! and of root.

use std::sync::Arc;

use lnet::Lnet;
use mgc::{JoinToken, registration};
use parking_lot::RwLock;
use rpc::ServerRequest;
use wire::format::bufs;
use wire::{Errno, Nid, NidList};

use crate::MgsError;
use crate::fsdb::Target;

/// The rules.
pub(crate) struct Admission {
    lnet: Arc<Lnet>,
    listed: RwLock<NidList>,
    token: Option<JoinToken>,
}

impl Admission {
    /// Nodes that `listed` names and holders of `token` may register targets.
    pub(crate) fn new(lnet: Arc<Lnet>, listed: NidList, token: Option<JoinToken>) -> Admission {
        Admission {
            lnet,
            listed: RwLock::new(listed),
            token,
        }
    }

    /// The NIDs that the administrator has listed.
    pub(crate) fn listed(&self) -> NidList {
        self.listed.read().clone()
    }

    /// Replaces the list.
    pub(crate) fn set_listed(&self, list: NidList) {
        *self.listed.write() = list;
    }

    /// Whether the node at this NID may register targets without a token.
    fn trusts(&self, nid: Nid) -> bool {
        self.lnet.is_local(nid) || self.listed.read().has(nid) || lnet::is_of_this_host(nid.addr())
    }

    /// Refuses a registration by a node that may not register targets. `store` is the UUID of the target's store.
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
                "it comes from {} and does not name this NID: a target registers from the node that it is on",
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
        let all = target.nodes.iter().flatten();
        let strangers: Vec<String> = all
            .filter(|nid| !self.trusts(**nid))
            .map(Nid::to_string)
            .collect();
        if strangers.is_empty() {
            return Ok(());
        }
        let why = if proof.is_empty() {
            "no server is known there"
        } else {
            "its join token is not that of this MGS"
        };
        let list = format!("{} {}", self.listed(), strangers.join(" "));
        refuse(format!(
            "{} may not register targets: {why}. To allow it, run `nacre lctl set_param 'mgs.MGS.server_nids={}'` here, \
             or copy the file `join-token` from this MGS's directory into the target's",
            req.peer,
            list.trim()
        ))
    }
}
