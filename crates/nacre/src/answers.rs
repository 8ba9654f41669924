//! What a running process answers to `nacre lctl` and `nacre lfs`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lnet::Lnet;
use mgc::Mgc;
use mgs::Mgs;
use params::Registry;
use serde_json::{Value, json};
use wire::Nid;

use crate::control::Request;

/// The shared parts of a node.
pub(crate) struct Parts {
    pub(crate) registry: Registry,
    pub(crate) lnet: Arc<Lnet>,
    pub(crate) mgs: Option<Arc<Mgs>>,
    pub(crate) mgcs: Vec<Arc<Mgc>>,
    pub(crate) targets: Vec<String>,
}

impl Parts {
    /// Answers a request that is not about the process itself.
    pub(crate) async fn answer(&self, request: Request) -> Result<Value> {
        match request {
            Request::GetParam { pattern } => Ok(json!(self.registry.get(&pattern))),
            Request::ListParam { pattern, recursive } => {
                let list = self.registry.list(&pattern, recursive);
                let item = |i: &params::ParamInfo| json!({ "name": i.name, "is_level": i.is_level, "writable": i.writable, "about": i.about });
                Ok(list.iter().map(item).collect())
            }
            Request::SetParam { pattern, value } => Ok(json!(self.registry.set(&pattern, &value)?)),
            Request::KeepParam { name, value } => {
                let Some(mgs) = &self.mgs else {
                    bail!("the MGS is not in this process: say which process has it with --dir");
                };
                mgs.keep_param(&name, value.as_deref()).await?;
                Ok(Value::Null)
            }
            Request::Ping { nid, timeout_s } => {
                let to: Nid = nid.parse().context("not a NID")?;
                let info = self.lnet.ping(to, Duration::from_secs(timeout_s)).await?;
                Ok(info.nis.iter().map(|ni| json!(ni.ns_nid.to_string())).collect())
            }
            Request::Devices => Ok(json!(self.devices())),
            Request::Status | Request::Stop { .. } => bail!("not for the node"),
            Request::Df { .. } | Request::Path2fid { .. } | Request::Fid2path { .. } => bail!("no mount"),
        }
    }

    /// Lines as `lctl dl` has them, without the number: state, type, name, UUID.
    fn devices(&self) -> Vec<String> {
        let mut out = Vec::new();
        if self.mgs.is_some() {
            out.push(format!("UP mgs {0} {0}", Mgs::UUID));
        }
        for mgc in &self.mgcs {
            out.push(format!(
                "UP mgc {} {}",
                mgc.import().name(),
                mgc.import().target_uuid()
            ));
        }
        for target in self.targets.iter().filter(|t| *t != Mgs::UUID) {
            let kind = if target.contains("-MDT") {
                "mdt"
            } else {
                "obdfilter"
            };
            out.push(format!("UP {kind} {target} {target}_UUID"));
        }
        out
    }
}
