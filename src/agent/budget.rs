//! What an attempt may use, and what it used.

use std::time::Duration;
use std::time::Instant;

use crate::env::Stepped;
use crate::protocol::episode::End;
use crate::protocol::message::Usage;
use crate::protocol::record::Limits;
use crate::protocol::record::Totals;

/// Counts an attempt against its limits. Limits are looked at before a request; the patch is taken beyond all of them.
pub struct Budget {
    limits: Limits,
    started: Instant,
    totals: Totals,
    /// Format errors since the last reply that could be read.
    format_errors: u64,
    price_unknown: bool,
}

impl Budget {
    /// A budget that starts now.
    pub fn new(limits: Limits) -> Self {
        let totals = Totals { cost: Some(0.0), ..Totals::default() };
        Self { limits, started: Instant::now(), totals, format_errors: 0, price_unknown: false }
    }

    /// Why there may be no further request.
    pub fn spent(&self) -> Option<End> {
        let reached = |limit: u64, used: u64| limit > 0 && used >= limit;
        if reached(self.limits.turns, self.totals.turns) {
            Some(End::TurnLimit)
        } else if reached(
            self.limits.tokens,
            self.totals.prompt_tokens + self.totals.completion_tokens,
        ) {
            Some(End::TokenLimit)
        } else if self.limits.cost > 0.0 && self.totals.cost.unwrap_or_default() >= self.limits.cost
        {
            Some(End::CostLimit)
        } else if self.limits.commands > 0
            && self.totals.command_seconds >= self.limits.commands as f64
        {
            Some(End::CommandTimeLimit)
        } else if reached(self.limits.wall, self.started.elapsed().as_secs()) {
            Some(End::TimeLimit)
        } else {
            None
        }
    }

    /// Counts a turn.
    pub fn start_turn(&mut self) {
        self.totals.turns += 1;
    }

    /// Counts an answer; true the first time that what it cost is not known.
    pub fn charge(&mut self, usage: Option<Usage>, cost: Option<f64>) -> bool {
        self.totals.calls += 1;
        let usage = usage.unwrap_or_default();
        self.totals.prompt_tokens += usage.prompt_tokens;
        self.totals.completion_tokens += usage.completion_tokens;
        // An answer without tokens came from no server, and cost nothing.
        let cost = if usage == Usage::default() { Some(cost.unwrap_or_default()) } else { cost };
        match cost {
            Some(cost) => {
                self.totals.cost = self.totals.cost.map(|total| total + cost);
                false
            }
            None => {
                self.totals.cost = None;
                !std::mem::replace(&mut self.price_unknown, true)
            }
        }
    }

    /// Counts a reply that could not be read; true when there were too many in a row.
    pub fn format_error(&mut self) -> bool {
        self.format_errors += 1;
        self.limits.format_errors > 0 && self.format_errors > self.limits.format_errors
    }

    /// A reply could be read.
    pub fn well_formed(&mut self) {
        self.format_errors = 0;
    }

    /// Counts the commands of a turn.
    pub fn ran(&mut self, stepped: &Stepped) {
        let micros: u64 = stepped.commands.iter().map(|(_, command)| command.micros).sum();
        self.totals.command_seconds += Duration::from_micros(micros).as_secs_f64();
    }

    /// Resolves when the wall clock limit passes.
    pub async fn wall_clock(&self) {
        if self.limits.wall == 0 {
            std::future::pending::<()>().await;
        }
        let left = Duration::from_secs(self.limits.wall).saturating_sub(self.started.elapsed());
        tokio::time::sleep(left).await;
    }

    /// What was used so far.
    pub fn totals(&self) -> Totals {
        Totals { seconds: self.started.elapsed().as_secs_f64(), ..self.totals }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limits: Limits) -> Budget {
        Budget::new(limits)
    }

    #[test]
    fn every_limit_has_its_own_end() {
        let off = Limits {
            turns: 0,
            tokens: 0,
            cost: 0.0,
            command: 0,
            commands: 0,
            wall: 0,
            format_errors: 0,
        };
        let used = |limits: Limits| {
            let mut budget = budget(limits);
            assert_eq!(budget.spent(), None);
            budget.start_turn();
            budget.charge(
                Some(Usage { prompt_tokens: 10, completion_tokens: 5, ..Usage::default() }),
                Some(0.5),
            );
            budget.totals.command_seconds = 2.0;
            budget.spent()
        };
        assert_eq!(used(off), None);
        assert_eq!(used(Limits { turns: 1, ..off }), Some(End::TurnLimit));
        assert_eq!(used(Limits { tokens: 15, ..off }), Some(End::TokenLimit));
        assert_eq!(used(Limits { cost: 0.5, ..off }), Some(End::CostLimit));
        assert_eq!(used(Limits { commands: 2, ..off }), Some(End::CommandTimeLimit));
        assert_eq!(used(Limits { turns: 2, tokens: 16, cost: 0.6, commands: 3, ..off }), None);
    }

    #[test]
    fn an_unknown_price_is_told_once_and_ends_nothing() {
        let mut budget = budget(Limits { cost: 0.1, ..Limits::default() });
        let usage = Some(Usage { prompt_tokens: 1, ..Usage::default() });
        assert!(budget.charge(usage, None));
        assert!(!budget.charge(usage, None));
        assert!(!budget.charge(None, None));
        assert_eq!(budget.totals().cost, None);
        assert_eq!(budget.spent(), None);
    }

    #[test]
    fn format_errors_count_in_a_row() {
        let mut budget = budget(Limits { format_errors: 2, ..Limits::default() });
        assert!(!budget.format_error());
        assert!(!budget.format_error());
        budget.well_formed();
        assert!(!budget.format_error());
        assert!(!budget.format_error());
        assert!(budget.format_error());
    }
}
