"""How far results may lie apart: against an oracle, within what honest runs are off by."""
