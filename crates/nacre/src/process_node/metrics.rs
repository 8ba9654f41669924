//! Metrics of a node over HTTP.

use anyhow::Result;

use super::ProcessNode;
use crate::metrics::MetricsServer;

impl ProcessNode {
    /// Serves the metrics at an address: `[IP:]PORT`.
    pub(crate) async fn serve_metrics(&mut self, addr: &str) -> Result<()> {
        self.metrics = Some(MetricsServer::start(addr, self.node.registry()).await?);
        Ok(())
    }

    /// A line that tells where the metrics are, with a newline before it; empty if they are not
    /// served.
    pub(crate) fn metrics_line(&self) -> String {
        self.metrics
            .as_ref()
            .map(|server| format!("\n  metrics at http://{}/metrics", server.addr()))
            .unwrap_or_default()
    }
}
