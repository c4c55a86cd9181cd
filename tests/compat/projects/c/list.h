int sum_of_squares(int count);
