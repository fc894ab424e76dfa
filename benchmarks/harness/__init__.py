"""What every suite shares: processes, timing, records, targets, graphs."""
