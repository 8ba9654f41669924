//! Reads and follows the MGS's table of NIDs ([`crate::nid_table`]).

use std::sync::Arc;

use rpc::{Bulk, Request};
use tokio::sync::watch;
use wire::format::bufs;
use wire::{
    LnetNid, MGS_CFG_T_RECOVER, MGS_CONFIG_READ, MgsConfigBody, MgsConfigRes, OBD_CONNECT_IMP_RECOV, Text,
    WireStruct,
};

use crate::follow::Followed;
use crate::nid_table::decode;
use crate::{Mgc, MgcError, NID_TABLE_SUFFIX, NidTable};

/// The table of NIDs is read in this number of units of this size, bytes.
const NID_TABLE_UNIT: u32 = 4096;
const NID_TABLE_UNITS: u32 = 256;

/// Maximum number of entries in a table: the highest index of a target is below this, for MDTs and
/// for OSTs.
const LOCATIONS_MAX: usize = 2 << 16;

impl Mgc {
    /// Follows the locations of a file system's targets. Without this, or at an MGS without a table
    /// of NIDs, clients notice the move of a target only by the silence of its old server.
    pub fn follow_nid_table(&self, fsname: &str) -> watch::Receiver<Arc<NidTable>> {
        let logname = format!("{fsname}{NID_TABLE_SUFFIX}");
        let (follower, rx) = self.follower(&logname, NidTable::default());
        self.tasks.lock().push(cpt::spawn(follower.run()));
        rx
    }

    /// Reads the locations of a file system's targets.
    async fn read_nid_table(&self, logname: &str) -> Result<NidTable, MgcError> {
        if !self.import().has(OBD_CONNECT_IMP_RECOV) {
            return Ok(NidTable::default());
        }
        let bad = |why: String| MgcError::Bad {
            logname: logname.to_owned(),
            why,
        };
        let (mut locations, mut offset) = (Vec::new(), 1);
        loop {
            let body = MgsConfigBody {
                mcb_name: Text::truncated(logname),
                mcb_offset: offset,
                mcb_type: MGS_CFG_T_RECOVER as u16,
                mcb_rec_nid_size: LnetNid::SIZE as u8,
                mcb_bits: NID_TABLE_UNIT.ilog2() as u8,
                mcb_units: NID_TABLE_UNITS,
            };
            let sink = Bulk::Sink(vec![NID_TABLE_UNIT * NID_TABLE_UNITS]);
            let request = Request::new(MGS_CONFIG_READ, vec![body.to_bytes()]).with_bulk(sink);
            let reply = self.call_about(logname, request).await?;
            let found: MgsConfigRes = reply.get(bufs::MGS_CONFIG_RES).map_err(|e| bad(e.to_string()))?;
            let pages = reply.bulk.into_iter().next().unwrap_or_default();
            let part = decode(&pages.into_bytes()).map_err(bad)?;
            let is_progress = !part.is_empty() && found.mcr_offset >= offset;
            locations.extend(part);
            if found.mcr_offset >= found.mcr_size {
                return Ok(NidTable(locations));
            }
            if !is_progress || locations.len() > LOCATIONS_MAX {
                return Err(bad(format!(
                    "{} entries up to version {} of {}",
                    locations.len(),
                    found.mcr_offset,
                    found.mcr_size
                )));
            }
            offset = found.mcr_offset + 1;
        }
    }
}

impl Followed for NidTable {
    async fn read(mgc: &Mgc, logname: &str) -> Result<NidTable, MgcError> {
        mgc.read_nid_table(logname).await
    }
}
